"""Every endpoint of the daemon, with random inputs and with all inputs that a fuzzer found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imex_sandbox.softimex.handles import Export, Exports
from tests.sandbox.fuzz.endpoints import ENDPOINTS, InProcessDaemon, run_input
from tests.sandbox.fuzz.inputs import MESSAGES, parse_input

CRASHES = Path(__file__).parent / "crashes"
"""At least one input for each endpoint; `make fuzz` adds those that fail."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[InProcessDaemon]:
    daemon = InProcessDaemon()
    yield daemon
    daemon.close()


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
@given(data=st.binary(max_size=120))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_input_raises_or_leaves_anything_behind(daemon: InProcessDaemon, endpoint: str, data: bytes) -> None:
    run_input(daemon, endpoint, parse_input(data))


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_is_kept_as_a_regression_passes(daemon: InProcessDaemon, path: Path) -> None:
    run_input(daemon, path.parent.name, parse_input(path.read_bytes()))


@pytest.mark.parametrize(("endpoint", "message"), [("peer", "request"), ("client", "import")])
def test_an_unchanged_message_with_a_valid_handle_reaches_the_import_decision(
    daemon: InProcessDaemon, endpoint: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the fuzzer would test only the checks in front of `Exports.grant`."""
    granted: list[Export] = []
    real = Exports.grant

    def grant(exports: Exports, *arguments: Any) -> Export:
        granted.append(real(exports, *arguments))
        return granted[-1]

    monkeypatch.setattr(Exports, "grant", grant)
    index = next(number for number, known in enumerate(MESSAGES) if message in (*known, known.get("call")))
    run_input(daemon, endpoint, parse_input(bytes([0, 4, index, 1])))
    assert granted
