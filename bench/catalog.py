"""The benchmarks: every module of this package with a tuple `BENCHMARKS` is a theme."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator

import bench
from bench.line import Line
from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes.progress import Progress

Benchmark = Callable[[Progress], Iterator[Line]]


def catalog() -> dict[str, Benchmark]:
    """By name: `theme.function`."""
    return {
        f"{theme}.{benchmark.__name__}": benchmark for theme in _modules() for benchmark in _benchmarks_of(theme)
    }


def choose(known: dict[str, Benchmark], names: Iterable[str]) -> dict[str, Benchmark]:
    """All, or those named by theme or in full."""
    wanted = list(names) or list(known)
    for name in wanted:
        if not any(_matches(full, name) for full in known):
            raise Misconfigured(f"there is no benchmark {name}; the benchmarks are: {', '.join(known)}")
    return {full: known[full] for full in known if any(_matches(full, name) for name in wanted)}


def _matches(full: str, name: str) -> bool:
    return full == name or full.partition(".")[0] == name


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_")]


def _benchmarks_of(theme: str) -> tuple[Benchmark, ...]:
    module = importlib.import_module(f"bench.{theme}")
    benchmarks: tuple[Benchmark, ...] = getattr(module, "BENCHMARKS", ())
    return benchmarks
