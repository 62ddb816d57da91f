"""What the metrics of `imex node` say of the kubelet's calls and of the node."""

import pytest

from imex_dra.api.metrics import (
    DAEMON_STATE,
    FABRIC_STATE,
    NODE_PROBLEMS,
    PREPARE_ERRORS,
    REGISTRATION,
    UNPREPARE_ERRORS,
    UNREACHABLE,
)
from imex_dra.api.nodereasons import daemon_not_ready
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.base.metrics import Metric, Metrics
from imex_dra.dra.plugin import ClaimId, PreparedDevice, Registration
from imex_dra.node.grant import Snapshot
from imex_dra.node.telemetry import MeasuredDriver, node_samples
from tests.node.snapshots import HEALTHY, daemon, healthy_except, reading

CLAIM = ClaimId("team", "claim", "uid")


class FakeDriver:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        await self.unprepare(claim)
        return ()

    async def unprepare(self, claim: ClaimId) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "result", "reason"),
    [
        (
            daemon_not_ready(node="n1", state=ImexState.UNAVAILABLE, problem="").error(NotYet),
            "retry",
            "DaemonNotReady",
        ),
        (
            daemon_not_ready(node="n1", state=ImexState.READY, problem="").error(Rejected),
            "terminal",
            "DaemonNotReady",
        ),
        (Rejected("without a reason"), "terminal", "Rejected"),
        (RuntimeError("a mistake"), "retry", "RuntimeError"),
    ],
)
async def test_a_failed_call_is_counted_with_its_reason_and_still_fails(
    error: Exception, result: str, reason: str
) -> None:
    metrics = Metrics()
    driver = MeasuredDriver(FakeDriver(error), metrics, Clock())
    with pytest.raises(type(error)):
        await driver.prepare(CLAIM)
    with pytest.raises(type(error)):
        await driver.unprepare(CLAIM)
    text = metrics.text()
    for verb in ("prepare", "unprepare"):
        assert f'imex_dra_{verb}_errors_total{{reason="{reason}"}} 1\n' in text
        assert f'imex_dra_{verb}_seconds_count{{result="{result}"}} 1\n' in text


async def test_a_call_that_succeeds_is_no_error() -> None:
    metrics = Metrics()
    await MeasuredDriver(FakeDriver(), metrics, Clock()).prepare(CLAIM)
    assert 'imex_dra_prepare_seconds_count{result="ok"} 1\n' in metrics.text()
    assert [s for s in metrics.samples() if s.metric in (PREPARE_ERRORS, UNPREPARE_ERRORS)] == []


def registered() -> Registration:
    registration = Registration()
    registration.problem = ""
    return registration


def values(metric: Metric, snapshot: Snapshot, registration: Registration) -> dict[tuple[str, ...], float]:
    """Those that are not 0."""
    found = node_samples(snapshot, registration)
    return {sample.labels: sample.value for sample in found if sample.metric is metric and sample.value}


def test_a_healthy_node_has_no_problem() -> None:
    assert values(REGISTRATION, HEALTHY, registered()) == {(): 1}
    assert values(DAEMON_STATE, HEALTHY, registered()) == {("READY",): 1}
    assert values(FABRIC_STATE, HEALTHY, registered()) == {("ok",): 1}
    assert values(NODE_PROBLEMS, HEALTHY, registered()) == {}
    assert values(UNREACHABLE, HEALTHY, registered()) == {}


def test_a_broken_node_says_what_is_broken() -> None:
    broken = healthy_except(reading=reading(FabricState.BROKEN, "XID 137"), unreachable=("n2", "n3"))
    assert values(FABRIC_STATE, broken, registered()) == {("broken",): 1}
    assert values(NODE_PROBLEMS, broken, registered()) == {("FabricBroken",): 1}
    assert values(UNREACHABLE, broken, registered()) == {(): 2}
    waiting = healthy_except(daemon=daemon(ImexState.WAITING_FOR_PEERS))
    assert values(DAEMON_STATE, waiting, Registration()) == {("WAITING_FOR_PEERS",): 1}
    assert values(NODE_PROBLEMS, waiting, Registration()) == {("DaemonNotReady",): 1}
    assert values(REGISTRATION, waiting, Registration()) == {}
