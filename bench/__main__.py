"""`python -m bench [NAME...]`: runs all benchmarks, all of a theme, or single ones."""

import os
import sys
import traceback

import click

from bench import report
from bench.catalog import Benchmark, catalog, choose
from bench.line import Line, Verdict
from bench.machine import this_machine
from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes.progress import Progress


@click.command()
@click.argument("names", nargs=-1, metavar="[THEME|THEME.BENCHMARK]...")
def main(names: tuple[str, ...]) -> None:
    """Run benchmarks, each with its yardstick; write bench/results.json and docs/benchmarks.md."""
    known = catalog()
    try:
        chosen = choose(known, names)
    except Misconfigured as error:
        raise click.UsageError(str(error)) from error
    measured, (load, _, _) = report.moment(), os.getloadavg()
    figures = {name: lines for name, benchmark in chosen.items() if (lines := _run(name, benchmark))}
    if figures:
        runs = {name: report.Run(measured, load, lines) for name, lines in figures.items()}
        report.record(this_machine(), runs, known)
        click.echo(report.table(figures))
    _report_over_budget(figures)
    sys.exit(figures.keys() != chosen.keys())


def _run(name: str, benchmark: Benchmark) -> list[Line]:
    """A benchmark that fails is reported, and the others still run."""
    progress = Progress(name)
    progress.show("started")
    try:
        lines = list(benchmark(progress))
    except Misconfigured as error:
        progress.finish(f"left out: {error}")
        return []
    except Exception:
        progress.finish("failed")
        traceback.print_exc()
        return []
    progress.finish("done")
    return lines


def _report_over_budget(figures: dict[str, list[Line]]) -> None:
    for lines in figures.values():
        for line in lines:
            if line.verdict is Verdict.RED:
                over = f"{report.number(line.value)} {line.unit}, budget {report.number(line.budget or 0)}"
                click.secho(f"over budget: {line.name}: {over}", fg="red", err=True)


if __name__ == "__main__":
    main()
