"""The runner: steps are timed, the first that fails ends it, and everything that was checked is reported."""

import asyncio

import pytest

from imex_dra.base.errors import NotYet, Unavailable
from imex_dra.picture.scene import Progress, Step
from imex_dra.sandbox.demo.report import Check, StepReport
from imex_dra.sandbox.demo.run import NotAsItShould, Run, sentence, unless_ended

GOOD, BAD = Check("nodes are Ready", True, "2 of 2"), Check("one channel", False, "channel 1, 2")


class Hours:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def run(clock: Hours, told: list[str]) -> Run:
    return Run(["racks", "claims"], told.append, clock)


def test_steps_are_timed_and_told(run: Run, clock: Hours, told: list[str]) -> None:
    with run.step("racks"):
        clock.now += 2.5
        run.expect(GOOD)
    report = run.report("/logs")
    assert (report.steps, report.seconds, report.ok) == ((StepReport("racks", 2.5, (GOOD,)),), 2.5, True)
    assert told == ["racks ...", "  ok: nodes are Ready: 2 of 2", "racks: 2.5 s"]


def test_a_check_that_fails_ends_its_step_with_all_that_was_found(run: Run, told: list[str]) -> None:
    with pytest.raises(NotAsItShould, match="one channel: channel 1, 2"), run.step("claims"):
        run.expect(BAD, GOOD)
    report = run.report("/logs")
    assert report.steps[0].checks == (BAD, GOOD)
    assert report.failure == "claims: one channel: channel 1, 2"
    assert told[1:3] == ["  FAILED: one channel: channel 1, 2", "  ok: nodes are Ready: 2 of 2"]


def test_an_error_in_a_step_is_its_failure_in_one_line(run: Run) -> None:
    with pytest.raises(NotYet), run.step("racks"):
        raise NotYet("the cluster was not ready within 60 s.\nThe last lines of the log: ...")
    assert run.report("/logs").failure == "racks: the cluster was not ready within 60 s."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("it is gone", "it is gone"),
        ("it ended.\nThe last lines:\na\nb", "it ended."),
        ("go could not build it:\nfirst\nno network", "go could not build it: no network"),
        ("nothing follows:", "nothing follows:"),
        ("", "NotYet"),
    ],
)
def test_an_error_is_told_in_one_sentence(words: str, said: str) -> None:
    assert sentence(NotYet(words)) == said


def test_an_interrupted_step_is_not_well_done(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt), run.step("racks"):
        raise KeyboardInterrupt
    assert run.report("/logs").failure == "racks: interrupted"


def test_the_story_tells_what_is_done_being_done_and_to_come(run: Run, clock: Hours) -> None:
    with run.step("racks", lambda: "3 of 4 nodes"):
        clock.now += 1
        story = run.story("demo")
    assert story.steps == (Step("racks", Progress.RUNNING, 1.0, "3 of 4 nodes"), Step("claims"))
    assert run.story("demo").steps == (Step("racks", Progress.DONE, 1.0), Step("claims"))
    with pytest.raises(NotAsItShould), run.step("claims"):
        run.expect(BAD)
    assert run.story("demo").steps[1].progress is Progress.FAILED
    assert run.story("demo").seconds == 1.0


async def test_work_is_awaited_with_its_result(run: Run) -> None:
    async def work() -> None:
        with run.step("racks"):
            await asyncio.sleep(0.01)
            run.expect(BAD)

    with pytest.raises(NotAsItShould):
        await unless_ended(work(), lambda: "", period=0.001)
    assert run.report("/logs").failure == "racks: one channel: channel 1, 2"


async def test_work_whose_ground_is_gone_ends_at_once_with_the_reason(run: Run) -> None:
    async def work() -> None:
        with run.step("racks"):
            async with asyncio.timeout(3600):
                await asyncio.sleep(3600)

    with pytest.raises(Unavailable, match="the cluster ended"):
        await unless_ended(work(), lambda: "the cluster ended", period=0.001)
    assert run.report("/logs").failure == "racks: the cluster ended"


async def test_work_is_cancelled_with_whoever_waits_for_it(run: Run) -> None:
    began = asyncio.Event()

    async def work() -> None:
        with run.step("racks"):
            began.set()
            await asyncio.sleep(3600)

    waiting = asyncio.create_task(unless_ended(work(), lambda: ""))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert run.report("/logs").failure == "racks: interrupted"
