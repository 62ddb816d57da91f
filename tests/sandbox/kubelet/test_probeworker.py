"""Probe results become verdicts: thresholds, periods, the order of the three types, and stopped containers."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from imex_sandbox.kubelet.podstate import ContainerRun, Termination
from imex_sandbox.kubelet.prober import FailedProbe, killing_message, must_stop_pod
from imex_sandbox.kubelet.probeworker import (
    ProbeResult,
    ProbeResults,
    ProbeType,
    ProbeWorker,
    execute_probe,
    initial_results,
)
from imex_sandbox.kubelet.views.pod import Container, ContainerStatus, Pod, PodMeta, PodSpec, Probe
from tests import virtual
from tests.virtual import LoopClock

EPOCH = LoopClock.EPOCH
RESULTS = {"+": ProbeResult(True), "-": ProbeResult(False, "no"), "?": ProbeResult(None, "error")}


@pytest.mark.parametrize(
    ("success", "failure", "results", "verdict"),
    [
        (1, 3, "", None),
        (1, 3, "+", True),
        (1, 3, "--", None),
        (1, 3, "---", False),
        (1, 3, "--+-", True),
        (1, 3, "+--+--", True),
        (1, 3, "+---", False),
        (2, 1, "+", None),
        (2, 1, "++", True),
        (2, 1, "++-+", False),
        (2, 1, "++-++", True),
    ],
)
def test_a_verdict_needs_as_many_consecutive_results_as_the_threshold(
    success: int, failure: int, results: str, verdict: bool | None
) -> None:
    probe = Probe(success_threshold=success, failure_threshold=failure)
    state = ProbeResults("run")
    for result in results:
        state = state.add(probe, result == "+")
    assert state.verdict is verdict


@pytest.mark.parametrize(
    ("kind", "known", "verdict"),
    [
        (ProbeType.READINESS, None, None),
        (ProbeType.READINESS, ContainerStatus("c", "run", ready=True), True),
        (ProbeType.READINESS, ContainerStatus("c", "run", ready=False), None),
        (ProbeType.READINESS, ContainerStatus("c", "an older run", ready=True), None),
        (ProbeType.STARTUP, ContainerStatus("c", "run", started=True), True),
        (ProbeType.LIVENESS, ContainerStatus("c", "run", ready=True, started=True), None),
    ],
)
def test_a_restarted_kubelet_continues_from_the_written_status(
    kind: ProbeType, known: ContainerStatus | None, verdict: bool | None
) -> None:
    assert initial_results(kind, ContainerRun("run", 0, EPOCH), known).verdict is verdict


class ProbedContainer:
    """A container whose runs and probe results the test decides, probed in virtual time."""

    def __init__(self, kind: ProbeType, probe: Probe, results: str = "", *, started: bool = True) -> None:
        self.run = ContainerRun("first", 0, EPOCH)
        self.probed_at: list[float] = []
        self.events: list[str] = []
        self._results: Iterator[str] = iter(results)
        self.worker = ProbeWorker(
            Container("c"),
            kind,
            probe,
            find=lambda: (self.run, None if self.run.termination else object()),  # type: ignore[arg-type,return-value]
            has_started=lambda: started,
            now=lambda: EPOCH + timedelta(seconds=asyncio.get_running_loop().time()),
            on_failure=self.events.append,
            on_verdict=lambda: None,
            execute=self._execute,
        )

    async def _execute(self, container: object, probe: Probe) -> ProbeResult:
        self.probed_at.append(round(asyncio.get_running_loop().time(), 3))
        return RESULTS[next(self._results, "+")]

    async def probe_for(self, seconds: float) -> None:
        task = asyncio.create_task(self.worker.run())
        await asyncio.sleep(seconds)
        task.cancel()


def test_a_probe_runs_once_per_period_after_the_initial_delay() -> None:
    container = ProbedContainer(ProbeType.LIVENESS, Probe(period_seconds=5, initial_delay_seconds=12))
    virtual.run(container.probe_for(31))
    assert container.probed_at == [15, 20, 25, 30]


def test_a_triggered_probe_runs_at_once() -> None:
    container = ProbedContainer(ProbeType.READINESS, Probe(period_seconds=10))
    container.worker.trigger.set()
    virtual.run(container.probe_for(11))
    assert container.probed_at == [0, 10]


@pytest.mark.parametrize(
    ("kind", "results", "times"),
    [(ProbeType.STARTUP, "--+", 3), (ProbeType.LIVENESS, "+---", 4), (ProbeType.READINESS, "---", 9)],
)
def test_probing_stops_after_a_final_verdict(kind: ProbeType, results: str, times: int) -> None:
    container = ProbedContainer(kind, Probe(period_seconds=1, failure_threshold=3), results)
    virtual.run(container.probe_for(9.5))
    assert len(container.probed_at) == times


def test_only_the_startup_probe_runs_before_the_container_has_started() -> None:
    liveness = ProbedContainer(ProbeType.LIVENESS, Probe(period_seconds=1), started=False)
    virtual.run(liveness.probe_for(5))
    assert liveness.probed_at == []
    startup = ProbedContainer(ProbeType.STARTUP, Probe(period_seconds=1), "-", started=False)
    virtual.run(startup.probe_for(1.5))
    assert startup.events == ["Startup probe failed: no"]


def test_a_probe_that_cannot_be_executed_is_reported_but_does_not_count() -> None:
    container = ProbedContainer(ProbeType.READINESS, Probe(period_seconds=1, failure_threshold=1), "+?")
    virtual.run(container.probe_for(2.5))
    assert container.worker.verdict(container.run) is True
    assert container.events == ["Readiness probe errored and resulted in unknown state: error"]


def test_the_next_run_of_a_container_starts_without_results() -> None:
    container = ProbedContainer(ProbeType.LIVENESS, Probe(period_seconds=1, failure_threshold=1), "-+")

    async def restart() -> None:
        await container.probe_for(1.5)
        assert container.worker.verdict(container.run) is False
        container.run = ContainerRun("first", 0, EPOCH, Termination(1, EPOCH))
        await container.probe_for(1.5)
        assert len(container.probed_at) == 1
        container.run = ContainerRun("second", 1, EPOCH)
        assert container.worker.verdict(container.run) is None
        await container.probe_for(1.5)
        assert container.worker.verdict(container.run) is True

    virtual.run(restart())


@pytest.mark.parametrize(
    ("probe", "handler"),
    [
        (Probe(http_get={"port": 80}), "httpGet"),
        (Probe(tcp_socket={"port": 80}), "tcpSocket"),
        (Probe(grpc={"port": 80}), "grpc"),
    ],
)
async def test_a_probe_that_needs_a_network_is_refused_by_name(probe: Probe, handler: str) -> None:
    result = await execute_probe(object(), probe)  # type: ignore[arg-type]
    assert result.success is None
    assert result.output.endswith(f"use an exec probe instead of {handler}")


@pytest.mark.parametrize(
    ("pod_policy", "container_policy", "message", "stops_pod"),
    [
        ("Always", "", "Container c failed liveness probe, will be restarted", False),
        ("OnFailure", "", "Container c failed liveness probe, will be restarted", False),
        ("Never", "", "Container c failed liveness probe", True),
        ("Never", "Always", "Container c failed liveness probe, will be restarted", False),
    ],
)
def test_a_failed_liveness_probe_stops_the_pod_if_no_container_is_left(
    pod_policy: str, container_policy: str, message: str, stops_pod: bool
) -> None:
    failed = FailedProbe(Container("c", restart_policy=container_policy), ProbeType.LIVENESS, Probe())
    pod = Pod(PodMeta(name="p"), PodSpec(restart_policy=pod_policy))
    assert killing_message(pod, failed) == message
    assert must_stop_pod(pod, [failed], ["c"]) is stops_pod
    assert not must_stop_pod(pod, [failed], ["c", "d"])
