"""Styled text that does not depend on a terminal: lines of spans, each with the name of a style.

Every character of a picture is one cell wide, so the width of a line is its length.
"""

from collections.abc import Iterable, Sequence

Span = tuple[str, str]
"""Text and the name of its style; the empty name means no style."""
Line = tuple[Span, ...]

Lines = tuple[Line, ...]


def line(*spans: Span | str) -> Line:
    return tuple((span, "") if isinstance(span, str) else span for span in spans)


def width(of: Line) -> int:
    return sum(len(text) for text, _ in of)


def max_width(lines: Iterable[Line]) -> int:
    return max(map(width, lines), default=0)


def truncated(of: Line, columns: int) -> Line:
    """At most `columns` wide; an ellipsis replaces what does not fit."""
    if width(of) <= columns:
        return of
    kept: list[Span] = []
    for text, style in of:
        kept.append((text[: max(0, columns - 1 - sum(len(t) for t, _ in kept))], style))
    return (*(span for span in kept if span[0]), ("…"[:columns], ""))


def padded(of: Line, columns: int) -> Line:
    missing = columns - width(of)
    return (*of, (" " * missing, "")) if missing > 0 else of


def justified(left: Line, right: Line, columns: int) -> Line:
    """One line aligned left and one aligned right."""
    gap = max(1, columns - width(left) - width(right))
    return truncated((*left, (" " * gap, ""), *right), columns)


def side_by_side(left: Sequence[Line], right: Sequence[Line], gap: int = 2) -> Lines:
    """Two blocks, aligned at the top."""
    columns = max_width(left)
    height = max(len(left), len(right))
    rows = zip(_extended(left, height), _extended(right, height), strict=True)
    return tuple((*padded(a, columns), (" " * gap, ""), *b) if b else a for a, b in rows)


def _extended(block: Sequence[Line], height: int) -> Lines:
    return (*block, *[()] * (height - len(block)))


def plain(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in of).rstrip() for of in lines)
