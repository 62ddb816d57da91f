"""Gives lines of ink their colours, with rich, which knows what a terminal can show and what NO_COLOR asks for."""

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text

from imex_dra.picture.ink import Line

_DOMAINS = ("#76b900", "#ff9f1c", "#4ea8ff", "#e879f9", "#ffd60a", "#2dd4bf", "#ff6b6b", "#a78bfa")

_STYLES = {
    "": Style(),
    "title": Style(bold=True),
    "frame": Style(color="grey42"),
    "spine": Style(color="grey58"),
    "name": Style(bold=True),
    "label": Style(color="grey58"),
    "dim": Style(color="grey50"),
    "count": Style(bold=True),
    "busy": Style(color="#76b900", bold=True),
    "fine": Style(color="#5f8f0a"),
    "good": Style(color="#76b900"),
    "warn": Style(color="#ffb000"),
    "bad": Style(color="#ff4d4d", bold=True),
}


def painted(lines: Iterable[Line]) -> Text:
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, spans in enumerate(lines):
        text.append("\n" if number else "")
        for words, style in spans:
            text.append(words, _style(style))
    return text


def _style(name: str) -> Style:
    """A ComputeDomain's letter is a colour: itself, with ! letters on it, with ? faint, with * bold."""
    if name in _STYLES:
        return _STYLES[name]
    colour = _DOMAINS[(ord(name[0]) - ord("A")) % len(_DOMAINS)]
    if name.endswith("!"):
        return Style(color="black", bgcolor=colour, bold=True)
    return Style(color=colour, dim="?" in name, bold="*" in name)
