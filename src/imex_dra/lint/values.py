"""A value of a manifest, and the line on which it is.

Manifests are any YAML that a user wrote. Therefore every access answers, also on a value of another type: a field
that is not there is a missing value, with the line of the value in which it would be. So no rule checks types, and
none can crash on them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

MAX_DEPTH = 100
"""Levels of a value. What walks through one can therefore be recursive."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Value:
    content: Any
    """A dict or tuple of values, a str, int, float, bool or None; or the marker of a missing value."""
    line: int = 0
    """From 1. Of an entry of a mapping: the line of its key. 0 if the value does not come from a file."""

    def __getitem__(self, key: str) -> "Value":
        found = self.content.get(key) if isinstance(self.content, dict) else None
        return Value(_MISSING, self.line) if found is None else found

    def at(self, path: str) -> "Value":
        """The value under keys that are separated by dots."""
        value = self
        for key in path.split("."):
            value = value[key]
        return value

    @property
    def exists(self) -> bool:
        return self.content is not _MISSING

    @property
    def filled(self) -> bool:
        """Exists, and is not null: Kubernetes treats a field that is null as one that is not there."""
        return self.exists and self.content is not None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else ""

    @property
    def scalar(self) -> str:
        """As text what a user may also have written as a number or a boolean."""
        match self.content:
            case bool(flag):
                return "true" if flag else "false"
            case str() | int() | float():
                return str(self.content)
        return ""

    @property
    def number(self) -> int | None:
        return self.content if isinstance(self.content, int) and not isinstance(self.content, bool) else None

    def count(self, default: int) -> int:
        """A number of replicas: not negative."""
        return default if self.number is None else max(self.number, 0)

    def items(self) -> Iterator[tuple[str, "Value"]]:
        if isinstance(self.content, dict):
            yield from self.content.items()

    def elements(self) -> tuple["Value", ...]:
        return self.content if isinstance(self.content, tuple) else ()

    def texts(self) -> Iterator["Value"]:
        """Every string in it, in order."""
        stack = [self]
        while stack:
            value = stack.pop()
            if isinstance(value.content, str):
                yield value
            stack += reversed(value.elements())
            stack += reversed([item for _, item in value.items()])

    def plain(self) -> Any:
        match self.content:
            case dict():
                return {key: value.plain() for key, value in self.content.items()}
            case tuple():
                return [value.plain() for value in self.content]
            case _Missing():
                return None
        return self.content

    def on_line(self, line: int) -> "Value":
        return replace(self, line=line)


def from_plain(content: Any, line: int = 0, depth: int = MAX_DEPTH) -> Value:
    """Of an object that was not read from a file, or from one without known lines.

    Raises ValueError if it is nested too deeply.
    """
    if depth < 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    match content:
        case dict():
            return Value({str(key): from_plain(value, line, depth - 1) for key, value in content.items()}, line)
        case list() | tuple():
            return Value(tuple(from_plain(value, line, depth - 1) for value in content), line)
    return Value(content, line)
