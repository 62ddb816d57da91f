"""Text of manifests to values with line numbers.

YAML events are read one by one instead of composed nodes: the nesting and what aliases expand to are limited
here, so that no file can exhaust the stack or the memory. Plain scalars are resolved as kubectl does (YAML 1.1
without dates and sexagesimal numbers). PyYAML is imported when it is needed; the production programs never load
it.
"""

import json
import re
from typing import Any, NamedTuple

from imex_dra.base.errors import Unreadable
from imex_dra.lint.values import MAX_DEPTH, Value, from_plain

_MAX_VALUES = 1_000_000
"""In one file, after aliases are expanded."""

_HELM = "this looks like a Helm template: render it first, as in `helm template CHART | imex lint -`"
_IGNORED = re.compile(r"#.*?\bimex-lint:\s*ignore\s+(IMEX\d{3}(?:[\s,]+IMEX\d{3})*)", re.IGNORECASE)
_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {
    word: flag
    for flag, words in ((True, ("true", "yes", "on", "y")), (False, ("false", "no", "off", "n")))
    for lower in words
    for word in (lower, lower.capitalize(), lower.upper())
}
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MAX_DIGITS = 300
"""Of a number. No double is larger, and parsing takes quadratic time."""


class Source(NamedTuple):
    """One file."""

    name: str
    documents: tuple[Value, ...]
    ignored: dict[int, frozenset[str]]
    """Ids of rules that a comment turns off, by line."""


def read_source(name: str, text: str) -> Source:
    """Raises Unreadable."""
    try:
        documents = _documents(text)
    except Unreadable as error:
        as_json = _as_json(text)
        if as_json is None:
            raise Unreadable(f"{name}:{error}") from None
        documents = (as_json,)
    return Source(name, documents, _ignored(text))


def _as_json(text: str) -> Value | None:
    """YAML parsers refuse some JSON, such as surrogate pairs. Its lines are then unknown."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        # Half a pair is no text that can be printed.
        printable = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
        return from_plain(json.loads(printable), 1)
    except (ValueError, RecursionError):
        return None


def _ignored(text: str) -> dict[int, frozenset[str]]:
    """A comment that is alone on its line concerns the next one."""
    ignored: dict[int, frozenset[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := _IGNORED.search(line):
            target = number + 1 if line.lstrip().startswith("#") else number
            ids = frozenset(re.split(r"[\s,]+", found[1].upper()))
            ignored[target] = ignored.get(target, frozenset()) | ids
    return ignored


def _documents(text: str) -> tuple[Value, ...]:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.add(type(event).__name__, event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or str(error).partition("\n")[0]
        line = mark.line + 1 if mark else 1
        hint = f"; {_HELM}" if "{{" in text else ""
        raise Unreadable(f"{line}: no valid YAML: {cause}{hint}") from error
    except UnicodeError as error:
        raise Unreadable("1: no valid YAML: it has characters that are not Unicode text") from error
    return tuple(builder.documents)


class _Collection:
    """A mapping or sequence whose end has not been read yet."""

    def __init__(self, *, mapping: bool, line: int, anchor: str | None) -> None:
        self.mapping = mapping
        self.line = line
        self.anchor = anchor
        self.size = 1
        self.depth = 1
        self.entries: dict[str, Value] = {}
        self.merged: list[Value] = []
        self.elements: list[Value] = []
        self.key: Value | None = None

    def add(self, value: Value) -> None:
        if not self.mapping:
            self.elements.append(value)
        elif self.key is None:
            self.key = value
        else:
            self._add_entry(self.key, value.on_line(self.key.line))
            self.key = None

    def _add_entry(self, key: Value, value: Value) -> None:
        if key.content == "<<":
            self.merged += value.elements() or (value,)
        else:
            self.entries[key.scalar] = value

    def finished(self) -> Value:
        if not self.mapping:
            return Value(tuple(self.elements), self.line)
        merged = {key: value for source in reversed(self.merged) for key, value in source.items()}
        return Value(merged | self.entries, self.line)


class _Builder:
    def __init__(self) -> None:
        self.documents: list[Value] = []
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[Value, int, int]] = {}
        self._size = 0

    def add(self, kind: str, event: Any) -> None:
        line = event.start_mark.line + 1
        match kind:
            case "DocumentStartEvent":
                self._anchors.clear()
            case "MappingStartEvent" | "SequenceStartEvent":
                if len(self._open) >= MAX_DEPTH:
                    raise Unreadable(_too_deep(line))
                mapping = kind == "MappingStartEvent"
                self._open.append(_Collection(mapping=mapping, line=line, anchor=event.anchor))
            case "MappingEndEvent" | "SequenceEndEvent":
                collection = self._open.pop()
                self._complete(collection.finished(), collection.size, collection.depth, collection.anchor)
            case "ScalarEvent":
                plain = event.implicit[0] and (event.tag is None or event.tag == "!")
                content = _resolve(event.value) if plain and not event.style else event.value
                self._complete(Value(content, line), 1, 0, event.anchor)
            case "AliasEvent":
                # Unknown also inside of itself: an anchor is known when its value is complete.
                if event.anchor not in self._anchors:
                    raise Unreadable(f"{line}: alias *{event.anchor} has no anchor before it")
                value, size, depth = self._anchors[event.anchor]
                self._complete(value.on_line(line), size, depth, None)

    def _complete(self, value: Value, size: int, depth: int, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = (value, size, depth)
        if self._open:
            parent = self._open[-1]
            parent.size += size
            parent.depth = max(parent.depth, depth + 1)
            parent.add(value)
        else:
            self._size += size
            self.documents.append(value)
        # What is open is not deeper than the limit, but aliases can make it so.
        if depth > MAX_DEPTH:
            raise Unreadable(_too_deep(value.line))
        if size > _MAX_VALUES or self._size > _MAX_VALUES:
            raise Unreadable(f"{value.line}: it has more than {_MAX_VALUES} values, aliases included")


def _too_deep(line: int) -> str:
    return f"{line}: it is nested more than {MAX_DEPTH} levels deep"


def _resolve(text: str) -> object:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) <= _MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return _integer(text.replace("_", ""))
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def _integer(text: str) -> int | float | str:
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    try:
        number = int(text, 8 if octal else 0)
    except ValueError:
        return text
    return number if abs(number) < 1 << 64 else float(number)
