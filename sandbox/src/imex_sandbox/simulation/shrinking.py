"""A failing story, made short: steps are left out as long as it still fails with the same violation.

First halves, then quarters, and so on down to single steps. The story also ends where it fails, because nothing
after that matters. Every attempt is a whole run, so the number of attempts is bounded.
"""

from collections.abc import Callable

from imex_sandbox.simulation.run import Outcome, Story, simulate

Simulate = Callable[[Story], Outcome]

ATTEMPTS = 150


def shrink(failed: Outcome, tell: Callable[[str], object], run: Simulate = simulate) -> Outcome:
    """The shortest story that was found, as it ran."""
    shortest, attempts = failed, 0
    size = max(1, len(failed.steps) // 2)
    while attempts < ATTEMPTS:
        for candidate in _without_chunks(shortest, size):
            attempts += 1
            outcome = run(candidate)
            if outcome.name == failed.name:
                tell(f"{len(outcome.steps)} of {len(failed.steps)} steps: {outcome.problem[:200]}")
                shortest = outcome
                break
            if attempts >= ATTEMPTS:
                break
        else:
            if size == 1:
                break
            size //= 2
    return shortest


def _without_chunks(outcome: Outcome, size: int) -> list[Story]:
    """The story without each chunk of this size; later steps first, because they are the least likely cause."""
    steps = outcome.steps
    starts = range(0, len(steps), size)
    kept = [frozenset(steps[:start] + steps[start + size :]) for start in reversed(starts)]
    return [outcome.story._replace(only=one) for one in kept if one or steps]
