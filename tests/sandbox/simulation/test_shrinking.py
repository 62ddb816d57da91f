"""A failing story is made short without changing why it fails."""

from imex_sandbox.simulation.run import Outcome, Story
from imex_sandbox.simulation.shrinking import ATTEMPTS, shrink

STEPS = tuple(range(100))


def outcome(story: Story, name: str) -> Outcome:
    steps = tuple(step for step in STEPS if story.only is None or step in story.only)
    return Outcome(story, name, name, 1.0, steps, 1, "", 1.0)


def test_only_the_steps_that_the_failure_needs_are_left() -> None:
    needed = {17, 42, 43}
    runs = []

    def run(story: Story) -> Outcome:
        runs.append(story)
        return outcome(story, "reused" if story.only is None or needed <= story.only else "")

    shortest = shrink(outcome(Story(1, 60.0), "reused"), lambda line: None, run)
    assert set(shortest.steps) == needed
    assert len(runs) <= ATTEMPTS


def test_another_failure_does_not_count() -> None:
    def run(story: Story) -> Outcome:
        return outcome(story, "at rest")

    failed = outcome(Story(1, 60.0), "reused")
    assert shrink(failed, lambda line: None, run) == failed
