from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.softimex import nodemap
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.nodemap import Seat

HOSTS = {"a": "127.1.0.10", "b": "127.1.0.11", "empty": "127.0.0.2"}

names = st.text("abcdefgh-0123456789.", min_size=1, max_size=8)
addresses = st.ip_addresses(v=4).map(str)


def test_order_defines_the_ids_and_blank_lines_do_not_count() -> None:
    assert nodemap.parse_nodes("a\n\n  b  \n# c\n10.0.0.1\n") == ("a", "b", "10.0.0.1")


def test_the_seat_is_the_entry_that_resolves_to_an_own_address() -> None:
    assert nodemap.find_seat(["empty", "a", "b"], HOSTS, ["127.1.0.11"]) == Seat(2, "127.1.0.11")
    assert nodemap.find_seat(["10.0.0.1", "10.0.0.2"], {}, ["10.0.0.2"]) == Seat(1, "10.0.0.2")


def test_a_bind_address_chooses_among_the_own_ones() -> None:
    own = ["127.1.0.10", "127.1.0.11"]
    assert nodemap.find_seat(["a", "b"], HOSTS, own, "127.1.0.11") == Seat(1, "127.1.0.11")
    assert nodemap.find_seat(["a", "b"], HOSTS, own, "127.1.0.12") is None


def test_nobody_without_a_matching_address_has_a_seat() -> None:
    assert nodemap.find_seat(["a", "unknown"], HOSTS, ["127.9.9.9"]) is None


def test_hosts_are_read_as_in_etc_hosts() -> None:
    text = "127.1.0.10 a alias # comment\n# 127.1.0.12 c\n127.1.0.99 a\nnot-an-address d\n\nfd00::1\te\n"
    assert nodemap.parse_hosts(text) == {"a": "127.1.0.10", "alias": "127.1.0.10", "e": "fd00::1"}


@given(st.lists(names, min_size=1), st.lists(names, min_size=1))
def test_keys_are_equal_exactly_if_the_maps_are(one: list[str], other: list[str]) -> None:
    assert (nodemap.key(one) == nodemap.key(other)) == (one == other)


@given(st.lists(addresses, min_size=1, unique=True), st.data())
def test_every_address_finds_its_own_seat(entries: list[str], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(entries))
    assert nodemap.find_seat(entries, {}, [own]) == Seat(entries.index(own), own)


@given(st.text())
def test_any_text_can_be_a_hosts_file(text: str) -> None:
    assert all(nodemap.is_address(address) for address in nodemap.parse_hosts(text).values())


def test_a_missing_or_empty_nodes_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(StartError, match=f"Failed to read node configuration file {path}"):
            nodemap.read_nodes(str(path))
