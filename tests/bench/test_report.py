"""A run of some benchmarks leaves the others as they were, with the time and the load of their own run."""

from collections.abc import Iterator

import msgspec

from bench import report
from bench.catalog import Benchmark, catalog
from bench.line import Line, line
from bench.machine import Machine
from bench.report import Results, Run
from imex_sandbox.kubernetes.progress import Progress

HERE = Machine(cores=2, processor="x86_64", python="3.11.7", kubernetes="v1.36.4")
ELSEWHERE = msgspec.structs.replace(HERE, cores=64)


def slow(progress: Progress) -> Iterator[Line]:
    """How slow it is."""
    yield line("slow", 2, "s", yardstick=1, yardstick_is="fast")


KNOWN: dict[str, Benchmark] = {"theme.old": slow, "theme.new": slow}


def run(measured: str, load: float, name: str) -> Run:
    return Run(measured, load, [line(name, 2, "s", yardstick=1, yardstick_is="fast", at_most=3)])


OLD = run("2026-11-15 07:00", 3.84, "an old figure")
NEW = run("2026-11-16 18:03", 0.69, "a new figure")


def test_each_benchmark_keeps_the_time_and_the_load_of_its_own_run() -> None:
    results = report.merge(Results(HERE, {"theme.old": OLD}), HERE, {"theme.new": NEW}, KNOWN)
    rows = [row for row in report.document(results, KNOWN).splitlines() if "figure" in row]
    assert rows == [
        "| an old figure | 2 | 1 | s | fast | 3 | green | 2026-11-15 07:00 | 3.8 |",
        "| a new figure | 2 | 1 | s | fast | 3 | green | 2026-11-16 18:03 | 0.7 |",
    ]


def test_a_benchmark_that_ran_again_has_its_new_figures_only() -> None:
    results = report.merge(Results(HERE, {"theme.new": OLD}), HERE, {"theme.new": NEW}, KNOWN)
    assert results.benchmarks == {"theme.new": NEW}


def test_figures_of_benchmarks_that_are_gone_do_not_stand() -> None:
    assert report.merge(Results(HERE, {"theme.gone": OLD}), HERE, {}, KNOWN).benchmarks == {}


def test_figures_of_another_machine_are_marked_until_they_are_measured_again() -> None:
    results = report.merge(Results(HERE, {"theme.old": OLD}), ELSEWHERE, {"theme.new": NEW}, KNOWN)
    text = report.document(results, KNOWN)
    assert "A time with * was on another machine: 64 cores (x86_64)" in text
    assert "| 2026-11-15 07:00 | 3.8 |" in text
    assert "| 2026-11-16 18:03 \\* | 0.7 |" in text
    assert report.merge(results, HERE, {"theme.new": NEW}, KNOWN).benchmarks["theme.new"] == NEW


def test_the_next_run_can_read_what_is_recorded() -> None:
    recorded = msgspec.json.decode(report.RESULTS.read_bytes(), type=Results)
    assert recorded.benchmarks.keys() <= catalog().keys()


def test_the_document_and_the_curves_show_the_stored_results() -> None:
    results = report.previous()
    assert results is not None
    for path, content in report.shown(results, catalog()).items():
        assert path.read_text() == content, f"{path.name} is not that of bench/results.json"
