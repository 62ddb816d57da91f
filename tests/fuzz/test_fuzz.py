"""Every decoder, with random inputs and with all inputs that a fuzzer found."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import VALUES
from tests.fuzz.targets import targets

TARGETS = targets()
CRASHES = Path(__file__).parent / "crashes"
"""`make fuzz` adds inputs that fail."""


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=20))
@settings(max_examples=60)
def test_no_input_raises(target: str, data: bytes) -> None:
    TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_hostile_value_in_any_place_raises(target: str) -> None:
    for position in range(80):
        for value in range(position % 9, len(VALUES), 9):
            TARGETS[target](bytes([0, position, value]))


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_is_kept_as_a_regression_passes(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
