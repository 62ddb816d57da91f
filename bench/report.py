"""What is kept of a run and how it is shown: `bench/results.json`, a table at the prompt, `docs/benchmarks.md`.

A run of some benchmarks leaves the figures of the others alone, as long as they are from the same machine; all
figures that stand together were measured on one.
"""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.catalogue import Benchmark
from bench.line import Line
from bench.machine import Machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results.json"
DOCUMENT = ROOT / "docs" / "benchmarks.md"

_HEADINGS = ("what", "value", "yardstick", "unit", "yardstick is", "budget", "verdict")


class Results(Struct):
    measured: str
    load: float
    """Load average as the last run began: others' work makes the slowest hundredth slower."""
    machine: Machine
    benchmarks: dict[str, list[Line]]


def record(machine: Machine, load: float, figures: dict[str, list[Line]], known: dict[str, Benchmark]) -> Results:
    """The new figures, and of the old ones those that still stand."""
    kept = {name: lines for name, lines in _previous(machine).items() if name in known}
    merged = kept | figures
    today = datetime.now(UTC).date().isoformat()
    results = Results(today, load, machine, {name: merged[name] for name in known if name in merged})
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    DOCUMENT.write_text(document(results, known))
    return results


def _previous(machine: Machine) -> dict[str, list[Line]]:
    if not RESULTS.exists():
        return {}
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results)
    return results.benchmarks if results.machine == machine else {}


def table(figures: dict[str, list[Line]]) -> str:
    rows = [_HEADINGS, *(_cells(line) for lines in figures.values() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def document(results: Results, known: dict[str, Benchmark]) -> str:
    sections = [
        "# Benchmarks",
        "Written by `make bench`; edit `bench/`, not this file. Value and yardstick are measured in the same run."
        " A budget is the most that a value may be.",
        f"Last run {results.measured} on {results.machine}; load average as it began: {results.load:.1f}.",
        _markdown(results.benchmarks),
        "## How each is measured",
        *(_method(name, known[name]) for name in results.benchmarks),
    ]
    return "\n\n".join(sections) + "\n"


def _method(name: str, benchmark: Benchmark) -> str:
    return f"**{name}.** {' '.join((benchmark.__doc__ or '').split())}"


def _markdown(figures: dict[str, list[Line]]) -> str:
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *(_cells(line) for lines in figures.values() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
    """Three digits that mean something."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
