"""Draws racks: a line per tray, lit in the colours of the ComputeDomains whose channels it holds."""

import functools
import itertools
import re
from collections.abc import Sequence

from msgspec import Struct

from imex_dra.picture.ink import Line, Lines, Span, beside, cut, line, padded, width
from imex_dra.picture.scene import Holding, Rack, Tray

_LABEL = 6
_TIMES = "\N{MULTIPLICATION SIGN}"


class Layout(Struct, frozen=True):
    columns: int
    """Of trays in a rack."""
    body: int
    """Cells of a tray that light up."""
    counts: bool = False
    """Whether seats are counted beside it."""

    @property
    def spine(self) -> bool:
        """Whether the NVLink switches have a line of their own between the upper trays and the lower."""
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
"""From the most beautiful to the smallest."""

_GAP = 2


def racks(shown: Sequence[Rack], room: int, height: int) -> Lines:
    """As large as they all fit, side by side if there is a way; a line each if nothing else does."""
    for fewest, layout in itertools.product((len(shown), 1), LAYOUTS):
        drawn = [rack(one, layout) for one in shown]
        abreast = (room + _GAP) // (_GAP + max((width(block[0]) for block in drawn), default=1))
        if abreast >= max(fewest, 1) and sum(_heights(drawn, abreast)) <= height:
            return _grid(drawn, abreast)
    return _listed(shown, room, height)


def _grid(blocks: Sequence[Lines], abreast: int) -> Lines:
    return tuple(one for first in range(0, len(blocks), abreast) for one in _row(blocks[first:][:abreast]))


def _heights(blocks: Sequence[Lines], abreast: int) -> list[int]:
    return [max(map(len, blocks[first:][:abreast])) for first in range(0, len(blocks), abreast)]


def _row(blocks: Sequence[Lines]) -> Lines:
    return functools.reduce(lambda left, right: beside(left, right, _GAP), blocks)


def _listed(shown: Sequence[Rack], room: int, height: int) -> Lines:
    told = tuple(cut(_summary(one), room) for one in shown)
    if len(told) <= height:
        return told
    kept = max(0, height - 1)
    return (*told[:kept], cut(line((f"and {len(told) - kept} racks more", "dim")), room)) if height > 0 else ()


def rack(shown: Rack, layout: Layout) -> Lines:
    labels = labels_of([tray.name for tray in shown.trays])
    cells = [tray(one, label, layout) for one, label in zip(shown.trays, labels, strict=True)]
    rows = _in_columns(cells, layout.columns)
    room = max(map(width, rows), default=0)
    inside = [line(("│ ", "frame"), *padded(row, room), (" │", "frame")) for row in rows]
    if layout.spine:
        inside.insert(_above_the_spine(len(inside)), _rule("╞═╡", _spine(shown), room + 2))
    top = _rule("╭─╮", _name(shown), room + 2, right=_ready(shown))
    bottom = line() if layout.spine else _spine(shown)
    return (top, *inside, _rule("╰─╯", bottom, room + 2))


def _above_the_spine(trays: int) -> int:
    """In an NVL72 ten trays are above the switches and eight below."""
    return -(-trays * 10 // 18)


def tray(shown: Tray, label: str, layout: Layout) -> Line:
    node: Span = ("●", "fine") if shown.ready else ("○", "bad")
    counts = _counts(shown) if layout.counts else ()
    return line((f"{label} ", "label"), node, _imex(shown), " ", *_body(shown, layout.body), *counts)


def _imex(shown: Tray) -> Span:
    if shown.fabric == "broken":
        return ("✕", "bad")
    if shown.fabric == "none":
        return ("-", "dim")
    return ("◆", "fine") if shown.imex == "READY" else ("◇", "warn")


def _counts(shown: Tray) -> Line:
    if not shown.seats and not shown.claims:
        return line(" " * 6)
    used, style = str(shown.claims), "count" if shown.claims else "dim"
    return line((f"{used:>3}", style), (f"/{shown.seats:<2}", "dim"))


def _body(shown: Tray, room: int) -> Line:
    if not shown.holdings:
        return line(("·" * room if shown.seats else " " * room, "dim"))
    holders = shown.holdings if len(shown.holdings) <= room else shown.holdings[: room - 1]
    crowd = () if holders is shown.holdings else (("+", "count"),)
    shares = _shares(room - len(crowd), len(holders))
    lit = [_light(one, share) for one, share in zip(holders, shares, strict=True)]
    return (*(span for light in lit for span in light), *crowd)


def _shares(room: int, holders: int) -> list[int]:
    """As equal as whole cells can be, the larger ones first."""
    share, left = divmod(room, max(holders, 1))
    return [share + (number < left) for number in range(holders)]


def _light(holding: Holding, room: int) -> Line:
    words = f"{holding.letter}{_TIMES}{holding.claims}" if holding.claims > 1 and room >= 5 else holding.letter
    words = f" {words} " if len(words) + 4 <= room else words
    left = (room - len(words)) // 2
    glyph, style = ("▇", holding.letter) if holding.prepared else ("░", f"{holding.letter}?")
    return ((glyph * left, style), (words, f"{style}*"), (glyph * (room - len(words) - left), style))


def _in_columns(cells: Sequence[Line], columns: int) -> Lines:
    """Downwards first, as the trays stand."""
    if columns == 1 or not cells:
        return tuple(cells)
    rows = -(-len(cells) // columns)
    room = max(map(width, cells))
    joined = []
    for row in range(rows):
        picked = cells[row::rows]
        joined.append(tuple(span for n, cell in enumerate(picked) for span in _spaced(padded(cell, room), n > 0)))
    return tuple(joined)


def _spaced(cell: Line, gap: bool) -> Line:
    return (("  ", ""), *cell) if gap else cell


def _rule(ends: str, words: Line, room: int, right: Line = ()) -> Line:
    """A border with words in it: to the left and, with room enough, to the right; a spine's in the middle."""
    left_end, fill, right_end = tuple(ends)
    style = "spine" if fill == "═" else "frame"
    right = right if width(words) + width(right) <= room else ()
    words = cut(words, room)
    spare = room - width(words) - width(right)
    before = spare // 2 if fill == "═" else min(1, spare)
    end = 1 if right and spare > before else 0
    between = spare - before - end
    return line(
        (left_end + fill * before, style), *words, (fill * between, style), *right, (fill * end + right_end, style)
    )


def _name(shown: Rack) -> Line:
    product = ((f"{shown.product} ", "dim"),) if shown.product else ()
    return ((f" {shown.name} ", "name"), *product)


def _ready(shown: Rack) -> Line:
    ready = sum(tray.ready for tray in shown.trays)
    return line((f" {ready}/{len(shown.trays)} Ready ", _all(ready, len(shown.trays))))


def _spine(shown: Rack) -> Line:
    fabric = [tray for tray in shown.trays if tray.fabric != "none"]
    if not fabric:
        return line((" no NVLink between nodes ", "dim"))
    up = sum(tray.imex == "READY" for tray in fabric)
    state = f"{shown.state} " if shown.state else ""
    style = {"UP": "good", "DEGRADED": "warn", "DOWN": "bad"}.get(shown.state, "dim")
    return line((" IMEX ", "spine"), (state, style), (f"{up}/{len(fabric)} ", _all(up, len(fabric))))


def _all(some: int, of: int) -> str:
    return "good" if some == of else "warn"


def _summary(shown: Rack) -> Line:
    claims = sum(tray.claims for tray in shown.trays)
    return (*_name(shown), *_ready(shown), *_spine(shown), (f"· {claims} claims", ""))


def labels_of(names: Sequence[str]) -> list[str]:
    """The number at the end of each name where that tells them apart; as wide as the widest."""
    numbers = ["".join(re.findall(r"\d+$", name)) for name in names]
    told_apart = all(numbers) and len(set(numbers)) == len(names)
    short = numbers if told_apart else [name[-_LABEL:] for name in names]
    room = max(map(len, short), default=0)
    return [label.rjust(room) for label in short]
