"""Stores the results in `bench/results.json`, and shows them as a table and in `docs/benchmarks.md`.

A run of some benchmarks keeps the results of the others. So results are not from one run, and perhaps not from one
machine: each has the time of its own run, and is marked if its machine is another one. Value and yardstick are
always from the same run.
"""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from bench.catalog import Benchmark
from bench.curves import CURVES, pictures
from bench.line import Line
from bench.machine import Machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results.json"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "curves"

_HEADINGS = ("what", "value", "yardstick", "unit", "yardstick is", "budget", "verdict")


class Run(Struct, frozen=True, omit_defaults=True):
    """The last run of a benchmark."""

    measured: str
    """When, in UTC."""
    load: float
    """Load average at the start: other work on the machine makes the slowest percentile slower."""
    lines: list[Line]
    machine: Machine | None = None
    """If it is another one than that of most results."""


class Results(Struct, frozen=True):
    machine: Machine
    benchmarks: dict[str, Run]


def record(machine: Machine, runs: dict[str, Run], known: dict[str, Benchmark]) -> None:
    results = merge(previous(), machine, runs, known)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    PICTURES.mkdir(exist_ok=True)
    for path, content in shown(results, known).items():
        path.write_text(content)


def shown(results: Results, known: dict[str, Benchmark]) -> dict[Path, str]:
    """The files that show the results."""
    found = {PICTURES / f"{name}.svg": picture for name, picture in _pictures(results).items()}
    return {DOCUMENT: document(results, known), **found}


def merge(
    previous: Results | None, machine: Machine, runs: dict[str, Run], known: dict[str, Benchmark]
) -> Results:
    """The new results, and the previous ones of benchmarks that still exist."""
    results = previous or Results(machine, {})
    marked = {name: structs.replace(run, machine=machine) for name, run in runs.items()}
    merged = results.benchmarks | (runs if machine == results.machine else marked)
    return Results(results.machine, {name: merged[name] for name in known if name in merged})


def previous() -> Results | None:
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else None


def moment() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"


def table(figures: dict[str, list[Line]]) -> str:
    rows = [_HEADINGS, *(_cells(line) for lines in figures.values() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def document(results: Results, known: dict[str, Benchmark]) -> str:
    sections = [
        "# Benchmarks",
        "Written by `make bench`; edit `bench/`, not this file. Value and yardstick are measured in the same run."
        " Two yardsticks of the scale theme are numbers of the design: the writes of the node itself, and the"
        " duration of the Lease. A budget is the maximum for a value.",
        f"Machine: {results.machine}. The values are not from one run: each row has the time (UTC) of its run and"
        f" the load average at its start.{_other_machines(results)}",
        *_curves(results),
        _markdown(results.benchmarks),
        "## How each is measured",
        *(_method(name, known[name]) for name in results.benchmarks),
    ]
    return "\n\n".join(sections) + "\n"


def _other_machines(results: Results) -> str:
    others = dict.fromkeys(str(run.machine) for run in results.benchmarks.values() if run.machine)
    return f" A time with * was on another machine: {'; '.join(others)}." if others else ""


def _pictures(results: Results) -> dict[str, str]:
    return pictures([line for run in results.benchmarks.values() for line in run.lines])


def _curves(results: Results) -> list[str]:
    found = [f"![{CURVES[name][0]}]({PICTURES.name}/{name}.svg)" for name in _pictures(results)]
    return ["## From 18 to 10,000 nodes", *found, "## All figures"] if found else []


def _method(name: str, benchmark: Benchmark) -> str:
    return f"**{name}.** {' '.join((benchmark.__doc__ or '').split())}"


def _markdown(benchmarks: dict[str, Run]) -> str:
    headings = (*_HEADINGS, "measured", "load")
    rows = [headings, ("---",) * len(headings), *(row for run in benchmarks.values() for row in _rows(run))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rows(run: Run) -> list[tuple[str, ...]]:
    measured = f"{run.measured} \\*" if run.machine else run.measured
    return [(*_cells(line), measured, f"{run.load:.1f}") for line in run.lines]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.name,
        number(line.value),
        number(line.yardstick),
        line.unit,
        line.yardstick_is,
        "-" if line.budget is None else number(line.budget),
        "-" if line.verdict == "none" else line.verdict,
    )


def number(value: float) -> str:
    """Three significant digits."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
