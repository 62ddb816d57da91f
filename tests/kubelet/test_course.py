"""What follows from the answers to a probe: thresholds, turns, the order of the three kinds, a container's end."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from imex_dra.base.clock import LoopClock
from imex_dra.sandbox.kubelet.prober import Condemned, leaves_nothing, words_of_end
from imex_dra.sandbox.kubelet.probes import Answer, Course, Kind, Watch, ask, first_course
from imex_dra.sandbox.kubelet.runs import End, Run
from imex_dra.sandbox.kubelet.views.container import Container, Probe
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta, PodSpec
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus
from tests import virtual

EPOCH = LoopClock.EPOCH
YES, NO, ERROR = Answer(True), Answer(False, "no"), Answer(None, "what?")


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
def test_results_count_from_the_threshold_on(
    success: int, failure: int, results: str, verdict: bool | None
) -> None:
    probe = Probe(success_threshold=success, failure_threshold=failure)
    course = Course("run")
    for result in results:
        course = course.heard(probe, result == "+")
    assert course.verdict is verdict


@pytest.mark.parametrize(
    ("kind", "known", "verdict"),
    [
        (Kind.READINESS, None, None),
        (Kind.READINESS, ContainerStatus("c", "run", ready=True), True),
        (Kind.READINESS, ContainerStatus("c", "run", ready=False), None),
        (Kind.READINESS, ContainerStatus("c", "an older run", ready=True), None),
        (Kind.STARTUP, ContainerStatus("c", "run", started=True), True),
        (Kind.LIVENESS, ContainerStatus("c", "run", ready=True, started=True), None),
    ],
)
def test_a_kubelet_that_starts_anew_goes_on_with_what_was_told(
    kind: Kind, known: ContainerStatus | None, verdict: bool | None
) -> None:
    assert first_course(kind, Run("run", 0, EPOCH), known).verdict is verdict


class Subject:
    """A container whose runs and answers a test decides; probed in virtual time."""

    def __init__(self, kind: Kind, probe: Probe, answers: str = "", *, started: bool = True) -> None:
        self.run = Run("first", 0, EPOCH)
        self.asked: list[float] = []
        self.events: list[str] = []
        self.started = started
        self._answers: Iterator[str] = iter(answers)
        self.watch = Watch(
            Container("c"),
            kind,
            probe,
            look=lambda: (self.run, None if self.run.end else object()),  # type: ignore[arg-type,return-value]
            may_ask=lambda: self.started,
            now=lambda: EPOCH + timedelta(seconds=asyncio.get_running_loop().time()),
            on_failure=self.events.append,
            on_verdict=lambda: None,
            ask=self._ask,
        )

    async def _ask(self, task: object, probe: Probe) -> Answer:
        self.asked.append(round(asyncio.get_running_loop().time(), 3))
        return {"+": YES, "-": NO, "?": ERROR}[next(self._answers, "+")]

    async def during(self, seconds: float) -> None:
        watching = asyncio.create_task(self.watch.run())
        await asyncio.sleep(seconds)
        watching.cancel()


def test_it_is_asked_once_in_a_period_after_the_first_delay() -> None:
    subject = Subject(Kind.LIVENESS, Probe(period_seconds=5, initial_delay_seconds=12))
    virtual.run(subject.during(31))
    assert subject.asked == [15, 20, 25, 30]


def test_readiness_is_asked_for_at_once_when_somebody_says_so() -> None:
    subject = Subject(Kind.READINESS, Probe(period_seconds=10))
    subject.watch.nudge.set()
    virtual.run(subject.during(11))
    assert subject.asked == [0, 10]


@pytest.mark.parametrize(
    ("kind", "answers", "times"),
    [(Kind.STARTUP, "--+", 3), (Kind.LIVENESS, "+---", 4), (Kind.READINESS, "---", 9)],
)
def test_who_has_started_or_is_condemned_is_left_alone(kind: Kind, answers: str, times: int) -> None:
    subject = Subject(kind, Probe(period_seconds=1, failure_threshold=3), answers)
    virtual.run(subject.during(9.5))
    assert len(subject.asked) == times


def test_nothing_but_the_startup_is_asked_before_it() -> None:
    late = Subject(Kind.LIVENESS, Probe(period_seconds=1), started=False)
    virtual.run(late.during(5))
    assert late.asked == []
    first = Subject(Kind.STARTUP, Probe(period_seconds=1), "-", started=False)
    virtual.run(first.during(1.5))
    assert first.events == ["Startup probe failed: no"]


def test_an_error_counts_for_nothing_and_is_told() -> None:
    subject = Subject(Kind.READINESS, Probe(period_seconds=1, failure_threshold=1), "+?")
    virtual.run(subject.during(2.5))
    assert subject.watch.verdict_of(subject.run) is True
    assert subject.events == ["Readiness probe errored and resulted in unknown state: what?"]


def test_the_next_run_begins_anew() -> None:
    subject = Subject(Kind.LIVENESS, Probe(period_seconds=1, failure_threshold=1), "-+")

    async def story() -> None:
        await subject.during(1.5)
        assert subject.watch.verdict_of(subject.run) is False
        subject.run = Run("first", 0, EPOCH, End(1, EPOCH))
        await subject.during(1.5)
        assert len(subject.asked) == 1
        subject.run = Run("second", 1, EPOCH)
        assert subject.watch.verdict_of(subject.run) is None
        await subject.during(1.5)
        assert subject.watch.verdict_of(subject.run) is True

    virtual.run(story())


@pytest.mark.parametrize(
    ("probe", "how"),
    [
        (Probe(http_get={"port": 80}), "httpGet"),
        (Probe(tcp_socket={"port": 80}), "tcpSocket"),
        (Probe(grpc={"port": 80}), "grpc"),
    ],
)
async def test_what_needs_a_network_is_refused_clearly(probe: Probe, how: str) -> None:
    answer = await ask(object(), probe)  # type: ignore[arg-type]
    assert answer.result is None
    assert answer.words.endswith(f"not {how}")


@pytest.mark.parametrize(
    ("policy", "own", "words", "nothing_left"),
    [
        ("Always", "", "Container c failed liveness probe, will be restarted", False),
        ("OnFailure", "", "Container c failed liveness probe, will be restarted", False),
        ("Never", "", "Container c failed liveness probe", True),
        ("Never", "Always", "Container c failed liveness probe, will be restarted", False),
    ],
)
def test_what_becomes_of_a_container_that_is_not_alive(
    policy: str, own: str, words: str, nothing_left: bool
) -> None:
    condemned = Condemned(Container("c", restart_policy=own), Kind.LIVENESS, Probe())
    pod = Pod(PodMeta(name="p"), PodSpec(restart_policy=policy))
    assert words_of_end(pod, condemned) == words
    assert leaves_nothing(pod, [condemned], ["c"]) is nothing_left
    assert not leaves_nothing(pod, [condemned], ["c", "d"])
