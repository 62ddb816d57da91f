"""`python -m imex_sandbox.simulation`: runs seeds, replays one, shortens a failure, checks the checks.

python -m imex_sandbox.simulation --seeds 200
python -m imex_sandbox.simulation --seed 4711 --story
python -m imex_sandbox.simulation --seed 4711 --shrink
python -m imex_sandbox.simulation --mutations
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pool

import click

from imex_sandbox.simulation.mutations import MUTATIONS, NAMES, find, mutation_named
from imex_sandbox.simulation.run import DAY, HOUR, Outcome, Story, simulate
from imex_sandbox.simulation.shrinking import shrink


@click.command()
@click.option("--seeds", default=20, show_default=True, help="How many seeds to run, from --first on.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run only this seed.")
@click.option("--hours", default=24.0, show_default=True, help="Virtual hours of faults for each seed.")
@click.option(
    "--pause", default=0.0, help="Mean virtual seconds between two operations; else drawn from the seed."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="How many seeds to run at once.")
@click.option("--story", is_flag=True, help="Print every operation with its virtual time. Needs --seed.")
@click.option("--only", help="Numbers of the operations to run, separated by commas, or none. Needs --seed.")
@click.option("--shrink", "shrinks", is_flag=True, help="Shorten the failure of --seed.")
@click.option("--mutation", type=click.Choice(NAMES), metavar="NAME", help="Break this safety condition.")
@click.option("--mutations", is_flag=True, help="Break each safety condition, and count the seeds to detection.")
def main(
    seeds: int,
    first: int,
    seed: int | None,
    hours: float,
    pause: float,
    jobs: int,
    story: bool,
    only: str | None,
    shrinks: bool,
    mutation: str | None,
    mutations: bool,
) -> None:
    """Run the real controller and node programs under random faults in virtual time.

    Every seed is a cluster with its own history of faults. It fails if an invariant is broken at any step, or if
    something is still wrong 40 minutes after the last fault. The same seed always runs the same way.
    """
    if seed is None and (story or only or shrinks):
        raise click.UsageError("--story, --only and --shrink need --seed")
    stories = [Story(number, hours * HOUR, None, pause) for number in range(first, first + seeds)]
    if mutations:
        sys.exit(_run_mutations(stories, jobs))
    began = time.monotonic()
    if seed is not None:
        _break(mutation)
        outcomes = [simulate(Story(seed, hours * HOUR, _numbers(only), pause), tell=click.echo if story else None)]
        click.echo(_line(outcomes[0]))
        if shrinks and outcomes[0].problem:
            _shrink(outcomes[0], mutation)
    else:
        outcomes = _run_seeds(stories, jobs, mutation, began)
    _summarize(outcomes, mutation, time.monotonic() - began)
    sys.exit(1 if any(outcome.problem for outcome in outcomes) else 0)


def _numbers(only: str | None) -> frozenset[int] | None:
    if only is None:
        return None
    return frozenset() if only == "none" else frozenset(map(int, only.split(",")))


def _break(mutation: str | None) -> None:
    if mutation:
        mutation_named(mutation).apply()


def _run_seeds(stories: list[Story], jobs: int, mutation: str | None, began: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        for outcome in _in_parallel(stories, jobs, mutation):
            outcomes.append(outcome)
            days = sum(one.virtual_seconds for one in outcomes) / DAY
            elapsed = time.monotonic() - began
            click.echo(f"[{len(outcomes)}/{len(stories)}, {days:.0f} days, {elapsed:.0f} s] {_line(outcome)}")
            if outcome.problem:
                _tell_how_to_replay(outcome, mutation)
    except KeyboardInterrupt:
        click.echo("interrupted")
    return outcomes


def _in_parallel(stories: list[Story], jobs: int, mutation: str | None) -> Iterator[Outcome]:
    with Pool(jobs, _start_worker, (mutation,), maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(simulate, stories)


def _start_worker(mutation: str | None) -> None:
    # Ctrl-C is for the first process only: the others would each print where they were.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _break(mutation)


def _run_mutations(stories: list[Story], jobs: int) -> int:
    click.echo(f"| mutation | what is broken | seeds to detection, of {len(stories)} | seed | seen as |")
    click.echo("|---|---|---|---|---|")
    missed = 0
    for mutation in MUTATIONS:
        found = find(mutation, stories, jobs)
        missed += found is None
        result = f"{found.seeds} | {found.seed} | {found.seen_as}" if found else "not found | |"
        click.echo(f"| {mutation.name} | `{mutation.module}.{mutation.attribute}` | {result} |")
    return 1 if missed else 0


def _shrink(failed: Outcome, mutation: str | None) -> None:
    shortest = shrink(failed, click.echo)
    click.echo(f"shortened from {len(failed.steps)} to {len(shortest.steps)} operations:")
    simulate(shortest.story, tell=click.echo)
    click.echo(f"replay: {_command(shortest.story, mutation)} --story")


def _line(outcome: Outcome) -> str:
    return (
        f"seed {outcome.story.seed}: {outcome.virtual_seconds / DAY:.2f} days, {len(outcome.steps)} operations,"
        f" {outcome.events:,} events, {outcome.events / outcome.seconds:,.0f} events/s, {outcome.digest}:"
        f" {outcome.problem or 'ok'}"
    )


def _summarize(outcomes: list[Outcome], mutation: str | None, seconds: float) -> None:
    days = sum(outcome.virtual_seconds for outcome in outcomes) / DAY
    events = sum(outcome.events for outcome in outcomes)
    operations = sum(len(outcome.steps) for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.problem]
    click.echo(
        f"{len(outcomes)} seeds, {days:.1f} virtual days, {operations:,} operations in {seconds:.0f} s,"
        f" {events / seconds:,.0f} events/s, {len(failed)} failed"
    )
    for outcome in failed:
        _tell_how_to_replay(outcome, mutation)


def _tell_how_to_replay(outcome: Outcome, mutation: str | None) -> None:
    click.echo(f"replay: {_command(outcome.story, mutation)} --story")
    click.echo(f"shrink: {_command(outcome.story, mutation)} --shrink")


def _command(story: Story, mutation: str | None) -> str:
    options = [f"--seed {story.seed}", f"--hours {story.duration / HOUR:g}"]
    options += [f"--pause {story.pause:g}"] if story.pause else []
    options += [f"--mutation '{mutation}'"] if mutation else []
    options += [f"--only {','.join(map(str, sorted(story.only))) or 'none'}"] if story.only is not None else []
    return f".venv/bin/python -m imex_sandbox.simulation {' '.join(options)}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings depends on it, and with it the order of events.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "imex_sandbox.simulation", *sys.argv[1:]], environment)
    main()
