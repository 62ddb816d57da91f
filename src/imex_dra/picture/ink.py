"""Coloured text before anybody knows whether there is a terminal: lines of spans, each with the name of a style.

Every character used in a picture is one cell wide, so that a line's width is its length.
"""

from collections.abc import Iterable, Sequence

Span = tuple[str, str]
"""Text, and the name of its style; the empty name is none."""
Line = tuple[Span, ...]

Lines = tuple[Line, ...]


def line(*spans: Span | str) -> Line:
    return tuple((span, "") if isinstance(span, str) else span for span in spans)


def width(of: Line) -> int:
    return sum(len(text) for text, _ in of)


def widest(lines: Iterable[Line]) -> int:
    return max(map(width, lines), default=0)


def cut(of: Line, room: int) -> Line:
    """At most as wide as the room; what was cut off leaves an ellipsis."""
    if width(of) <= room:
        return of
    kept: list[Span] = []
    for text, style in of:
        kept.append((text[: max(0, room - 1 - sum(len(t) for t, _ in kept))], style))
    return (*(span for span in kept if span[0]), ("…"[:room], ""))


def padded(of: Line, room: int) -> Line:
    missing = room - width(of)
    return (*of, (" " * missing, "")) if missing > 0 else of


def filled(left: Line, right: Line, room: int) -> Line:
    """One to the left, one to the right."""
    gap = max(1, room - width(left) - width(right))
    return cut((*left, (" " * gap, ""), *right), room)


def beside(left: Sequence[Line], right: Sequence[Line], gap: int = 2) -> Lines:
    """Two blocks side by side, aligned at the top."""
    room = widest(left)
    height = max(len(left), len(right))
    rows = zip(_tall(left, height), _tall(right, height), strict=True)
    return tuple((*padded(a, room), (" " * gap, ""), *b) if b else a for a, b in rows)


def _tall(block: Sequence[Line], height: int) -> Lines:
    return (*block, *[()] * (height - len(block)))


def plain(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in of).rstrip() for of in lines)
