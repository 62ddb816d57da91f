"""The contract suite on programs whose addresses are given: two domains at a time do not collide."""

import pytest

from tests.sandbox.softimex.installation import Domain


def addresses(domain: Domain) -> list[str]:
    return [node.address for node in domain.nodes]


def test_domains_in_a_given_network_have_different_addresses_until_they_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVIDIA_IMEX_NET", "127.77.7")
    shared, other = Domain(2), Domain(2)
    try:
        assert addresses(shared) == ["127.77.7.10", "127.77.7.11"]
        assert addresses(other) == ["127.77.7.12", "127.77.7.13"]
        other.close()
        other = Domain(1)
        assert addresses(other) == ["127.77.7.12"]
    finally:
        for domain in (shared, other):
            domain.close()
