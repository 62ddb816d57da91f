"""Curves over the number of nodes, as SVG pictures for docs/benchmarks.md. Pure.

A picture adapts to the light or dark background of the page by a style sheet of its own. It needs no library: it
is two lines, a few ticks, and a label for every point.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.line import Line

START = "first start to a correct status of all ComputeDomains"
LAG = "change of a node to the status of its ComputeDomains, p99"
MEMORY = "resident memory of imex controller"
WRITES = "API writes of the controller for a daemon restart"
"""What the curves show; the lines of `bench.scale` have these names, after the number of nodes."""

CURVES = {
    "start": ("Start to the first correct status of all ComputeDomains", START),
    "lag": ("Change of a node to ComputeDomain status, 99th percentile (18 nodes: 9 changes/s, others: 50)", LAG),
    "memory": ("Resident memory of the controller", MEMORY),
    "writes": ("API writes of the controller for one daemon restart", WRITES),
}
"""By the name of the picture: its title, and the lines that it shows."""

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 40, 56, 56

_SHAPES = """
    text { font: 13px system-ui, sans-serif; }
    .title { font-weight: 600; font-size: 15px; }
    .number { font-weight: 600; }
    .value { fill: none; stroke-width: 2.5; }
    .yardstick { fill: none; stroke-width: 1.5; stroke-dasharray: 5 4; }"""
_COLORS = """
    .paper {{ fill: {paper}; }}
    text {{ fill: {ink}; }}
    .grid {{ stroke: {faint}; }}
    .value {{ stroke: {curve}; }}
    .dot, .number {{ fill: {curve}; }}
    .yardstick {{ stroke: {other}; }}
    .other {{ fill: {other}; }}"""
_LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "faint": "#d1d9e0", "curve": "#0969da", "other": "#9a6700"}
_DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "faint": "#3d444d", "curve": "#4493f8", "other": "#d29922"}
# No variables: not every program that shows pictures knows them.
_STYLE = (
    f"{_SHAPES}{_COLORS.format(**_LIGHT)}\n    @media (prefers-color-scheme: dark) {{"
    f"{_COLORS.format(**_DARK)}\n    }}\n"
)


class Point(NamedTuple):
    nodes: int
    value: float
    yardstick: float


class Curve(NamedTuple):
    title: str
    unit: str
    yardstick_is: str
    points: Sequence[Point]


def curve(title: str, what: str, lines: Iterable[Line]) -> Curve | None:
    """From the lines `<nodes> nodes: <what>`; None if there are fewer than two."""
    found = sorted((_nodes(line), line) for line in lines if f" nodes: {what}" in line.name)
    if len(found) < 2:
        return None
    first = found[0][1]
    points = [Point(nodes, line.value, line.yardstick) for nodes, line in found]
    return Curve(title, first.unit, first.yardstick_is, points)


def pictures(lines: Sequence[Line]) -> dict[str, str]:
    """SVG by name, for those curves of which there are figures."""
    found = {name: curve(title, what, lines) for name, (title, what) in CURVES.items()}
    return {name: svg(one) for name, one in found.items() if one is not None}


def _nodes(line: Line) -> int:
    return int(line.name.partition(" ")[0].replace(",", ""))


def svg(curve: Curve) -> str:
    """The nodes on a logarithmic axis, the values on a linear one from zero."""
    highest = _rounded_up(max(max(point.value, point.yardstick) for point in curve.points))
    xs = [_x(point.nodes, curve.points) for point in curve.points]
    grid = [_tick(highest * part / 4, highest) for part in range(5)]
    nodes = [_text(x, HEIGHT - BOTTOM + 22, f"{p.nodes:,}") for x, p in zip(xs, curve.points, strict=True)]
    values = [(x, _y(point.value, highest)) for x, point in zip(xs, curve.points, strict=True)]
    yardsticks = [(x, _y(point.yardstick, highest)) for x, point in zip(xs, curve.points, strict=True)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' aria-label="{_escaped(_spoken(curve))}">',
            f"  <style>{_STYLE}  </style>",
            f'  <rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            _text(LEFT, 22, f"{curve.title} ({curve.unit})", "title", anchor="start"),
            _text(LEFT, 42, f"dashed: {curve.yardstick_is}", "other", anchor="start"),
            *grid,
            *nodes,
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "nodes"),
            _polyline(yardsticks, "yardstick"),
            _polyline(values, "value"),
            *(f'  <circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in values),
            *(
                _text(x, y - 10, _number(point.value), "number")
                for (x, y), point in zip(values, curve.points, strict=True)
            ),
            "</svg>",
            "",
        ]
    )


def _spoken(curve: Curve) -> str:
    values = ", ".join(f"{_number(point.value)} with {point.nodes:,} nodes" for point in curve.points)
    return f"{curve.title} in {curve.unit}: {values}"


def _x(nodes: int, points: Sequence[Point]) -> float:
    first, last = math.log(points[0].nodes), math.log(points[-1].nodes)
    inside = WIDTH - LEFT - RIGHT - 40
    return LEFT + 20 + inside * (math.log(nodes) - first) / (last - first)


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM - 16) * value / highest


def _rounded_up(value: float) -> float:
    """To a number whose quarters are round, for the ticks."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value)


def _tick(value: float, highest: float) -> str:
    y = _y(value, highest)
    line = f'  <line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f"{line}\n{_text(LEFT - 8, y + 4, f'{value:g}', anchor='end')}"


def _polyline(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'  <polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "middle") -> str:
    class_ = f' class="{kind}"' if kind else ""
    return f'  <text{class_} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _number(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
