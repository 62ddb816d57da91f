"""The steps of the demo are timed and recorded, and the first check that fails ends them."""

import asyncio

import pytest

from imex_dra.base.errors import NotYet, Unavailable
from imex_dra.picture.model import Step, StepState
from imex_sandbox.demo.report import Check, StepReport
from imex_sandbox.demo.steps import CheckFailed, StepLog, first_sentence, run_while_alive

GOOD, BAD = Check("nodes are Ready", True, "2 of 2"), Check("one channel", False, "channel 1, 2")


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def steps(clock: FakeClock, lines: list[str]) -> StepLog:
    return StepLog(["racks", "claims"], lines.append, clock)


def test_a_step_is_timed_and_printed(steps: StepLog, clock: FakeClock, lines: list[str]) -> None:
    with steps.step("racks"):
        clock.now += 2.5
        steps.expect(GOOD)
    report = steps.report("/logs")
    assert (report.steps, report.seconds, report.ok) == ((StepReport("racks", 2.5, (GOOD,)),), 2.5, True)
    assert lines == ["racks ...", "  ok: nodes are Ready: 2 of 2", "racks: 2.5 s"]


def test_a_failed_check_ends_its_step_after_all_checks_are_recorded(steps: StepLog, lines: list[str]) -> None:
    with pytest.raises(CheckFailed, match="one channel: channel 1, 2"), steps.step("claims"):
        steps.expect(BAD, GOOD)
    report = steps.report("/logs")
    assert report.steps[0].checks == (BAD, GOOD)
    assert report.failure == "claims: one channel: channel 1, 2"
    assert lines[1:3] == ["  FAILED: one channel: channel 1, 2", "  ok: nodes are Ready: 2 of 2"]


def test_the_first_line_of_an_error_is_the_failure_of_its_step(steps: StepLog) -> None:
    with pytest.raises(NotYet), steps.step("racks"):
        raise NotYet("the cluster was not ready within 60 s.\nThe last lines of the log: ...")
    assert steps.report("/logs").failure == "racks: the cluster was not ready within 60 s."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it is gone", "it is gone"),
        ("it ended.\nThe last lines:\na\nb", "it ended."),
        ("go could not build it:\nfirst\nno network", "go could not build it: no network"),
        ("nothing follows:", "nothing follows:"),
        ("", "NotYet"),
    ],
)
def test_the_first_sentence_of_an_error(text: str, expected: str) -> None:
    assert first_sentence(NotYet(text)) == expected


def test_an_interrupted_step_has_failed(steps: StepLog) -> None:
    with pytest.raises(KeyboardInterrupt), steps.step("racks"):
        raise KeyboardInterrupt
    assert steps.report("/logs").failure == "racks: interrupted"


def test_the_progress_has_completed_current_and_remaining_steps(steps: StepLog, clock: FakeClock) -> None:
    with steps.step("racks", lambda: "3 of 4 nodes"):
        clock.now += 1
        progress = steps.progress("demo")
    assert progress.steps == (Step("racks", StepState.RUNNING, 1.0, "3 of 4 nodes"), Step("claims"))
    assert steps.progress("demo").steps == (Step("racks", StepState.DONE, 1.0), Step("claims"))
    with pytest.raises(CheckFailed), steps.step("claims"):
        steps.expect(BAD)
    assert steps.progress("demo").steps[1].state is StepState.FAILED
    assert steps.progress("demo").seconds == 1.0


async def test_an_error_of_the_work_is_raised(steps: StepLog) -> None:
    async def work() -> None:
        with steps.step("racks"):
            await asyncio.sleep(0.01)
            steps.expect(BAD)

    with pytest.raises(CheckFailed):
        await run_while_alive(work(), lambda: "", period=0.001)
    assert steps.report("/logs").failure == "racks: one channel: channel 1, 2"


async def test_work_is_cancelled_with_the_reason_when_the_cluster_ends(steps: StepLog) -> None:
    async def work() -> None:
        with steps.step("racks"):
            async with asyncio.timeout(3600):
                await asyncio.sleep(3600)

    with pytest.raises(Unavailable, match="the cluster ended"):
        await run_while_alive(work(), lambda: "the cluster ended", period=0.001)
    assert steps.report("/logs").failure == "racks: the cluster ended"


async def test_work_is_cancelled_with_its_caller(steps: StepLog) -> None:
    began = asyncio.Event()

    async def work() -> None:
        with steps.step("racks"):
            began.set()
            await asyncio.sleep(3600)

    waiting = asyncio.create_task(run_while_alive(work(), lambda: ""))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert steps.report("/logs").failure == "racks: interrupted"
