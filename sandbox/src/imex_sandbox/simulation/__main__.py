"""`python -m imex_sandbox.simulation`: runs seeds, and replays one.

python -m imex_sandbox.simulation --seeds 200
python -m imex_sandbox.simulation --seed 4711 --story
"""

import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pool

import click

from imex_sandbox.simulation.run import DAY, Outcome, simulate


@click.command()
@click.option("--seeds", default=20, show_default=True, help="How many seeds to run, from --first on.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run only this seed.")
@click.option("--hours", default=24.0, show_default=True, help="Virtual hours of faults for each seed.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="How many seeds to run at once.")
@click.option("--story", is_flag=True, help="Print every operation with its virtual time. Needs --seed.")
def main(seeds: int, first: int, seed: int | None, hours: float, jobs: int, story: bool) -> None:
    """Run the real controller and node programs under random faults in virtual time.

    Every seed is a cluster with its own history of faults. It fails if a promise is broken at any step, or if
    something is still wrong half an hour after the last fault. The same seed always runs the same way.
    """
    if story and seed is None:
        raise click.UsageError("--story needs --seed")
    began = time.monotonic()
    if seed is not None:
        outcomes = [simulate(seed, hours * 3600.0, tell=click.echo if story else None)]
        click.echo(_line(outcomes[0]))
    else:
        outcomes = list(_run(range(first, first + seeds), hours * 3600.0, jobs))
    _summarize(outcomes, time.monotonic() - began, hours)
    sys.exit(1 if any(outcome.problem for outcome in outcomes) else 0)


def _run(seeds: range, duration: float, jobs: int) -> Iterator[Outcome]:
    with Pool(jobs, maxtasksperchild=20) as pool:
        for outcome in pool.imap_unordered(_Seed(duration), seeds):
            click.echo(_line(outcome))
            yield outcome


class _Seed:
    """A function that another process can be given."""

    def __init__(self, duration: float) -> None:
        self._duration = duration

    def __call__(self, seed: int) -> Outcome:
        return simulate(seed, self._duration)


def _line(outcome: Outcome) -> str:
    return (
        f"seed {outcome.seed}: {outcome.virtual_seconds / DAY:.2f} days, {outcome.operations} operations,"
        f" {outcome.changes:,} changes, {outcome.seconds:.1f} s: {outcome.problem or 'ok'}"
    )


def _summarize(outcomes: list[Outcome], seconds: float, hours: float) -> None:
    days = sum(outcome.virtual_seconds for outcome in outcomes) / DAY
    changes = sum(outcome.changes for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.problem]
    click.echo(
        f"{len(outcomes)} seeds, {days:.1f} virtual days in {seconds:.0f} s, {changes / seconds:,.0f} changes/s,"
        f" {len(failed)} failed"
    )
    for outcome in failed:
        click.echo(f"replay: python -m imex_sandbox.simulation --seed {outcome.seed} --hours {hours:g} --story")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings depends on it, and with it the order of events.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "imex_sandbox.simulation", *sys.argv[1:]], environment)
    main()
