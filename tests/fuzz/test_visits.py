"""Every door, visited at random, and by all that a fuzzer ever found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imex_dra.softimex.ledger import Export, Ledger
from tests.fuzz.doors import DOORS, House, knock
from tests.fuzz.visits import MESSAGES, compose


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@pytest.mark.parametrize("door", list(DOORS))
@given(data=st.binary(max_size=120))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_visit_leaves_a_trace(house: House, door: str, data: bytes) -> None:
    honest, chunks = compose(data)
    knock(house, door, chunks, honest)


def test_what_was_found_once_stays_fixed(house: House) -> None:
    for path in sorted((Path(__file__).parent / "crashes").glob("*/*")):
        honest, chunks = compose(path.read_bytes())
        knock(house, path.parent.name, chunks, honest)


@pytest.mark.parametrize(("door", "question"), [("peer", "ask"), ("client", "import")])
def test_the_fuzzers_language_reaches_the_inmost_room(
    house: House, door: str, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a good handle and no change, memory is granted: nothing in front of the ledger stops the fuzzer."""
    granted: list[Export] = []
    real = Ledger.grant

    def grant(ledger: Ledger, *arguments: Any) -> Export:
        granted.append(real(ledger, *arguments))
        return granted[-1]

    monkeypatch.setattr(Ledger, "grant", grant)
    index = next(number for number, message in enumerate(MESSAGES) if question in (*message, message.get("call")))
    knock(house, door, compose(bytes([0, 4, index, 1])).chunks, honest=True)
    assert granted
