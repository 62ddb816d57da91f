"""Draws racks: a line per node, colored by the ComputeDomains that have claims there."""

import functools
import itertools
import re
from collections.abc import Sequence

from msgspec import Struct

from imex_dra.picture.model import DomainClaims, Rack, RackNode
from imex_dra.picture.text import Line, Lines, Span, line, padded, side_by_side, truncated, width

_LABEL_WIDTH = 6
_GAP = 2
_TIMES = "\N{MULTIPLICATION SIGN}"


class Layout(Struct, frozen=True):
    columns: int
    """Columns of nodes in a rack."""
    bar: int
    """Cells per node that show its ComputeDomains."""
    counts: bool = False
    """Whether allocated and published devices are shown as numbers."""

    @property
    def spine(self) -> bool:
        """Whether the NVLink switches have a line of their own, between the upper and the lower nodes."""
        return self.columns == 1


LAYOUTS = (
    Layout(1, 31, counts=True),
    Layout(1, 23, counts=True),
    Layout(1, 15, counts=True),
    Layout(2, 10),
    Layout(2, 5),
    Layout(3, 3),
    Layout(3, 1),
    Layout(6, 1),
)
"""From the largest to the smallest."""


def draw_racks(racks: Sequence[Rack], columns: int, height: int) -> Lines:
    """In the largest layout that fits, preferably side by side; if none fits, a line per rack."""
    for min_per_row, layout in itertools.product((len(racks), 1), LAYOUTS):
        blocks = [draw_rack(rack, layout) for rack in racks]
        per_row = (columns + _GAP) // (_GAP + max((width(block[0]) for block in blocks), default=1))
        if per_row >= max(min_per_row, 1) and sum(_row_heights(blocks, per_row)) <= height:
            return _grid(blocks, per_row)
    return _list(racks, columns, height)


def _grid(blocks: Sequence[Lines], per_row: int) -> Lines:
    return tuple(one for first in range(0, len(blocks), per_row) for one in _row(blocks[first:][:per_row]))


def _row_heights(blocks: Sequence[Lines], per_row: int) -> list[int]:
    return [max(map(len, blocks[first:][:per_row])) for first in range(0, len(blocks), per_row)]


def _row(blocks: Sequence[Lines]) -> Lines:
    return functools.reduce(lambda left, right: side_by_side(left, right, _GAP), blocks)


def _list(racks: Sequence[Rack], columns: int, height: int) -> Lines:
    lines = tuple(truncated(_summary(rack), columns) for rack in racks)
    if len(lines) <= height:
        return lines
    kept = max(0, height - 1)
    more = truncated(line((f"and {len(lines) - kept} more racks", "dim")), columns)
    return (*lines[:kept], more) if height > 0 else ()


def draw_rack(rack: Rack, layout: Layout) -> Lines:
    labels = node_labels([node.name for node in rack.nodes])
    cells = [draw_node(node, label, layout) for node, label in zip(rack.nodes, labels, strict=True)]
    rows = _in_columns(cells, layout.columns)
    columns = max(map(width, rows), default=0)
    content = [line(("│ ", "frame"), *padded(row, columns), (" │", "frame")) for row in rows]
    if layout.spine:
        content.insert(_nodes_above_spine(len(content)), _border("╞═╡", _imex_summary(rack), columns + 2))
    top = _border("╭─╮", _name(rack), columns + 2, right=_ready(rack))
    bottom = line() if layout.spine else _imex_summary(rack)
    return (top, *content, _border("╰─╯", bottom, columns + 2))


def _nodes_above_spine(nodes: int) -> int:
    """An NVL72 has ten compute trays above the NVLink switches and eight below."""
    return -(-nodes * 10 // 18)


def draw_node(node: RackNode, label: str, layout: Layout) -> Line:
    ready: Span = ("●", "fine") if node.ready else ("○", "bad")
    counts = _device_counts(node) if layout.counts else ()
    return line((f"{label} ", "label"), ready, _imex(node), " ", *_bar(node, layout.bar), *counts)


def _imex(node: RackNode) -> Span:
    if node.fabric == "broken":
        return ("✕", "bad")
    if node.fabric == "none":
        return ("-", "dim")
    return ("◆", "fine") if node.imex == "READY" else ("◇", "warn")


def _device_counts(node: RackNode) -> Line:
    if not node.devices and not node.claims:
        return line(" " * 6)
    return line((f"{node.claims:>3}", "count" if node.claims else "dim"), (f"/{node.devices:<2}", "dim"))


def _bar(node: RackNode, cells: int) -> Line:
    if not node.domains:
        return line(("·" * cells if node.devices else " " * cells, "dim"))
    shown = node.domains if len(node.domains) <= cells else node.domains[: cells - 1]
    more = () if shown is node.domains else (("+", "count"),)
    shares = _shares(cells - len(more), len(shown))
    segments = [_segment(domain, share) for domain, share in zip(shown, shares, strict=True)]
    return (*(span for segment in segments for span in segment), *more)


def _shares(cells: int, parts: int) -> list[int]:
    """As equal as whole cells can be, the larger ones first."""
    share, rest = divmod(cells, max(parts, 1))
    return [share + (number < rest) for number in range(parts)]


def _segment(domain: DomainClaims, cells: int) -> Line:
    label = f"{domain.letter}{_TIMES}{domain.claims}" if domain.claims > 1 and cells >= 5 else domain.letter
    label = f" {label} " if len(label) + 4 <= cells else label
    left = (cells - len(label)) // 2
    glyph, style = ("▇", domain.letter) if domain.prepared else ("░", f"{domain.letter}?")
    return ((glyph * left, style), (label, f"{style}*"), (glyph * (cells - len(label) - left), style))


def _in_columns(cells: Sequence[Line], columns: int) -> Lines:
    """Top to bottom first, as the trays are mounted."""
    if columns == 1 or not cells:
        return tuple(cells)
    rows = -(-len(cells) // columns)
    cell_width = max(map(width, cells))
    return tuple(_joined([padded(cell, cell_width) for cell in cells[row::rows]]) for row in range(rows))


def _joined(cells: Sequence[Line]) -> Line:
    first, *others = cells
    return (*first, *(span for cell in others for span in (("  ", ""), *cell)))


def _border(ends: str, label: Line, columns: int, right: Line = ()) -> Line:
    """A border with labels: one to the left and, if it fits, one to the right; on the spine in the middle."""
    left_end, fill, right_end = tuple(ends)
    style = "spine" if fill == "═" else "frame"
    right = right if width(label) + width(right) <= columns else ()
    label = truncated(label, columns)
    spare = columns - width(label) - width(right)
    before = spare // 2 if fill == "═" else min(1, spare)
    after = 1 if right and spare > before else 0
    between = spare - before - after
    return line(
        (left_end + fill * before, style),
        *label,
        (fill * between, style),
        *right,
        (fill * after + right_end, style),
    )


def _name(rack: Rack) -> Line:
    product = ((f"{rack.product} ", "dim"),) if rack.product else ()
    return ((f" {rack.name} ", "name"), *product)


def _ready(rack: Rack) -> Line:
    ready = sum(node.ready for node in rack.nodes)
    return line((f" {ready}/{len(rack.nodes)} Ready ", _good_if_all(ready, len(rack.nodes))))


def _imex_summary(rack: Rack) -> Line:
    fabric_nodes = [node for node in rack.nodes if node.fabric != "none"]
    if not fabric_nodes:
        return line((" no NVLink between nodes ", "dim"))
    ready, total = sum(node.imex == "READY" for node in fabric_nodes), len(fabric_nodes)
    state = f"{rack.state} " if rack.state else ""
    style = {"UP": "good", "DEGRADED": "warn", "DOWN": "bad"}.get(rack.state, "dim")
    return line((" IMEX ", "spine"), (state, style), (f"{ready}/{total} ", _good_if_all(ready, total)))


def _good_if_all(count: int, total: int) -> str:
    return "good" if count == total else "warn"


def _summary(rack: Rack) -> Line:
    claims = sum(node.claims for node in rack.nodes)
    return (*_name(rack), *_ready(rack), *_imex_summary(rack), (f"· {claims} claims", ""))


def node_labels(names: Sequence[str]) -> list[str]:
    """The number at the end of each name if that is unique, else the end of the name; all equally wide."""
    numbers = ["".join(re.findall(r"\d+$", name)) for name in names]
    unique = all(numbers) and len(set(numbers)) == len(names)
    labels = numbers if unique else [name[-_LABEL_WIDTH:] for name in names]
    columns = max(map(len, labels), default=0)
    return [label.rjust(columns) for label in labels]
