"""Metrics in the text format of Prometheus.

Not by prometheus_client, whose import costs 2 MB: the controller has to fit in 60 MB with 1,000 nodes. Counters
and histograms are kept here. What can be read from objects in memory is computed by a source when Prometheus asks,
so that it costs nothing otherwise and never differs from them.

Series are bounded: a metric has at most MAX_SERIES combinations of label values, and whatever would be one more is
counted under the value "other".
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_SERIES = 200
"""Of one counter or histogram. Sources are bounded by what they read: partitions and states."""

OTHER = "other"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds, in ascending order, of a histogram."""


class Sample(NamedTuple):
    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """One value for each label of the metric."""


Source = Callable[[], Iterable[Sample]]


class _Histogram:
    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0


class Metrics:
    """The series of one program. `constant`: labels that all of them have."""

    def __init__(self, **constant: str) -> None:
        self._constant = tuple(constant.items())
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], _Histogram]] = {}
        self._sources: list[Source] = []

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        series = self._values.setdefault(metric, {})
        labels = _bounded(series, metric, labels)
        series[labels] = series.get(labels, 0.0) + by

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        series = self._values.setdefault(metric, {})
        series[_bounded(series, metric, labels)] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        series = self._histograms.setdefault(metric, {})
        labels = _bounded(series, metric, labels)
        histogram = series.setdefault(labels, _Histogram(len(metric.buckets)))
        histogram.counts[bisect_left(metric.buckets, value)] += 1
        histogram.sum += value

    @contextmanager
    def source(self, source: Source) -> Iterator[None]:
        """Asks the source for its samples at each scrape, until the end of the context."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    def samples(self) -> list[Sample]:
        """Without histograms."""
        kept = [
            Sample(metric, value, labels)
            for metric, series in self._values.items()
            for labels, value in series.items()
        ]
        return kept + [sample for source in self._sources for sample in source()]

    def text(self) -> str:
        lines: dict[Metric, list[str]] = {}
        for metric, value, labels in self.samples():
            lines.setdefault(metric, []).append(self._line(metric.name, metric, labels, value))
        for metric, series in self._histograms.items():
            for labels, histogram in series.items():
                lines.setdefault(metric, []).extend(self._histogram_lines(metric, labels, histogram))
        return "".join(
            f"# HELP {metric.name} {_escaped_help(metric.help)}\n# TYPE {metric.name} {metric.kind}\n"
            + "".join(lines[metric])
            for metric in sorted(lines)
        )

    def _histogram_lines(self, metric: Metric, labels: tuple[str, ...], histogram: _Histogram) -> Iterator[str]:
        total = 0
        for bound, count in zip((*metric.buckets, math.inf), histogram.counts, strict=True):
            total += count
            yield self._line(f"{metric.name}_bucket", metric, labels, total, ("le", _number(bound)))
        yield self._line(f"{metric.name}_sum", metric, labels, histogram.sum)
        yield self._line(f"{metric.name}_count", metric, labels, total)

    def _line(
        self, name: str, metric: Metric, values: tuple[str, ...], value: float, *more: tuple[str, str]
    ) -> str:
        labels = (*self._constant, *zip(metric.labels, values, strict=True), *more)
        listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        return f"{name}{{{listed}}} {_number(value)}\n" if listed else f"{name} {_number(value)}\n"


def _bounded(series: Mapping[tuple[str, ...], object], metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
    if labels in series or len(series) < MAX_SERIES:
        return labels
    return (OTHER,) * len(metric.labels)


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
