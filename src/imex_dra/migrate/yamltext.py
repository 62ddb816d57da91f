"""Exact edits of YAML text, at the positions of its nodes.

No document is serialized again: an edit removes or inserts characters, so that everything else keeps its bytes. A
place that cannot be edited so raises `NotEditable`. Edits are collected, and applied together by `edited`.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from imex_dra.base.errors import Unreadable

_EMPTY_LINES = re.compile(r"(\s*\n)+")

Node = Any
"""Of PyYAML, which is imported when it is needed."""

_DOCUMENT = -1
"""The depth of a new document."""


class _Edit(NamedTuple):
    start: int
    end: int
    text: str
    depth: int = 0
    """Of inserted lines. At one place in the text the deeper ones are first: they continue what ends there."""

    @property
    def order(self) -> tuple[int, int, int]:
        return self.start, self.end, -self.depth


class NotEditable(Unreadable):
    """The YAML is valid, but migrate cannot edit this place."""


class YamlText:
    """Raises Unreadable. The text must have passed `read_source`, which limits its depth."""

    def __init__(self, text: str) -> None:
        import yaml

        self.text = text
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.roots: list[Node] = list(yaml.compose_all(text, Loader=loader))
        self._edits: list[_Edit] = []
        self._starts: list[tuple[int, bool]] = []
        self.aliases: set[int] = set()
        """Documents with aliases: an edit in one place would also change another."""
        events: Iterable[Any] = yaml.parse(text, Loader=loader)
        for event in events:
            if type(event).__name__ == "DocumentStartEvent":
                self._starts.append((event.start_mark.index, bool(event.explicit)))
            elif type(event).__name__ == "AliasEvent":
                self.aliases.add(len(self._starts) - 1)

    def edited(self) -> str:
        newline = "\r\n" if "\r\n" in self.text else "\n"
        parts, position = [], 0
        for edit in sorted(self._edits, key=lambda edit: edit.order):
            if edit.start < position:
                raise NotEditable(f"{self.line(edit.start)}: two changes are in one place")
            parts += [self.text[position : edit.start], edit.text.replace("\n", newline)]
            position = edit.end
        return "".join((*parts, self.text[position:]))

    def checkpoint(self) -> int:
        return len(self._edits)

    def undo(self, checkpoint: int) -> None:
        """Forgets the edits since then."""
        del self._edits[checkpoint:]

    def line(self, index: int) -> int:
        return self.text.count("\n", 0, index) + 1

    # Removing

    def remove_entry(self, mapping: Node, key: str) -> None:
        self._check_mapping(mapping)
        index = [k.value for k, _ in mapping.value].index(key)
        if mapping.flow_style:
            parts = [(k.start_mark.index, max(_end(self.text, v), k.end_mark.index)) for k, v in mapping.value]
            self._remove_from_flow(parts, {index})
            return
        key_node, value = mapping.value[index]
        start = key_node.start_mark.index
        if self._only_spaces_before(start):
            self._delete(self._line_start(start), self._line_end(_end(self.text, value)))
        elif index + 1 < len(mapping.value):
            # On the line of a dash, to which the next key moves up.
            self._delete(start, mapping.value[index + 1][0].start_mark.index)
        else:
            raise NotEditable(f"{self.line(start)}: {key} is on the line of a dash")

    def remove_elements(self, sequence: Node, indexes: set[int]) -> None:
        """Not all of them: then the entry with the sequence is removed."""
        if sequence.flow_style:
            parts = [(node.start_mark.index, _end(self.text, node)) for node in sequence.value]
            self._remove_from_flow(parts, indexes)
            return
        for index in sorted(indexes):
            node = sequence.value[index]
            dash = self.text.rfind("-", 0, node.start_mark.index)
            if self.text[dash + 1 : node.start_mark.index].strip() or not self._only_spaces_before(dash):
                raise NotEditable(f"{self.line(dash)}: this element of a list has an unusual form")
            self._delete(self._line_start(dash), self._line_end(_end(self.text, node)))

    def _remove_from_flow(self, parts: list[tuple[int, int]], indexes: set[int]) -> None:
        kept = min((index for index in range(len(parts)) if index not in indexes), default=len(parts))
        for index in sorted(indexes):
            start, end = parts[index]
            if index > kept:
                self._delete(parts[index - 1][1], end)
            else:
                self._delete(start, parts[index + 1][0] if index + 1 < len(parts) else end)

    def remove_text(self, scalar: Node, patterns: Iterable[str]) -> int:
        """Removes what matches within the text of a scalar, or its group `cut`. Returns how many."""
        start, end = scalar.start_mark.index, scalar.end_mark.index
        found = [match for pattern in patterns for match in re.finditer(pattern, self.text[start:end])]
        for match in found:
            group = "cut" if "cut" in match.re.groupindex else 0
            self._delete(start + match.start(group), start + match.end(group))
        return len(found)

    def _delete(self, start: int, end: int) -> None:
        self._edits.append(_Edit(start, end, ""))

    # Inserting

    def replace(self, scalar: Node, text: str) -> None:
        self._edits.append(_Edit(scalar.start_mark.index, scalar.end_mark.index, text))

    def merge(self, mapping: Node, content: dict[str, Any], before: str = "") -> None:
        """Adds entries; lists get further elements. A new entry is placed before the given key."""
        self._check_mapping(mapping)
        for key, value in content.items():
            found = child(mapping, key)
            if found is None:
                self._insert_entry(mapping, key, value, before)
            elif found.id == "mapping" and isinstance(value, dict) and found.value:
                self.merge(found, value)
            elif found.id == "sequence" and isinstance(value, list) and found.value:
                self._append(found, value)
            elif not found.value or found.tag.endswith(":null"):
                start, end = found.start_mark.index, found.end_mark.index
                self._edits.append(_Edit(start, end, (" " if start == end else "") + _flow(value)))
            else:
                raise NotEditable(f"{self.line(found.start_mark.index)}: {key} is not a list or a mapping")

    def _check_mapping(self, mapping: Node) -> None:
        """Raises NotEditable also if a key is a list or a mapping, or is written as `? key`."""
        line = self.line(mapping.start_mark.index)
        if mapping.id != "mapping":
            raise NotEditable(f"{line}: this is no mapping")
        for key, _ in mapping.value:
            start = key.start_mark.index
            before = self.text[self._line_start(start) : start].rstrip()
            if not is_plain_key(key) or before.endswith("?"):
                raise NotEditable(f"{line}: a key of this mapping has an unusual form")

    def _insert_entry(self, mapping: Node, key: str, value: Any, before: str) -> None:
        if mapping.flow_style:
            entries = mapping.value
            at = _end(self.text, entries[-1][1]) if entries else mapping.start_mark.index + 1
            self._edits.append(_Edit(at, at, (", " if entries else "") + _flow({key: value})[1:-1]))
            return
        column = mapping.value[0][0].start_mark.column
        lines, depth = _block({key: value}, column), 2 * column
        start = next((k.start_mark.index for k, _ in mapping.value if k.value == before), -1)
        if start >= 0 and self._only_spaces_before(start):
            at = self._above_comments(self._line_start(start))
            self._edits.append(_Edit(at, at, lines, depth))
        else:
            self._insert_after(_end(self.text, mapping), lines, depth)

    def _append(self, sequence: Node, elements: list[Any]) -> None:
        if sequence.flow_style:
            at = _end(self.text, sequence.value[-1])
            self._edits.append(_Edit(at, at, ", " + _flow(elements)[1:-1]))
        else:
            column = sequence.start_mark.column
            # Its dash may be in the column of the keys around it, and is deeper.
            self._insert_after(_end(self.text, sequence), _block(elements, column), 2 * column + 1)

    def insert_document(self, number: int, content: dict[str, Any]) -> None:
        """Before the document with this number. Comments above a document stay with it."""
        start, explicit = self._starts[number]
        if explicit:
            self._edits.append(_Edit(start, start, f"---\n{_block(content, 0)}", _DOCUMENT))
        else:
            root = self.roots[number].start_mark.index
            at = self._above_comments(self._line_start(root))
            self._edits.append(_Edit(at, at, f"{_block(content, 0)}---\n", _DOCUMENT))

    def _insert_after(self, index: int, lines: str, depth: int) -> None:
        at = self._line_end(index)
        unfinished = at == len(self.text) and not self.text.endswith("\n")
        self._edits.append(_Edit(at, at, f"\n{lines.rstrip()}" if unfinished else lines, depth))

    # Positions

    def _line_start(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        """After the line break."""
        found = self.text.find("\n", index)
        return len(self.text) if found < 0 else found + 1

    def _only_spaces_before(self, index: int) -> bool:
        return not self.text[self._line_start(index) : index].strip()

    def _above_comments(self, at: int) -> int:
        """The start of the comments directly above a line."""
        while at > 0:
            above = self._line_start(at - 1)
            if not self.text[above:at].lstrip().startswith("#"):
                break
            at = above
        return at


def is_plain_key(key: Node) -> bool:
    """Neither a list or a mapping, nor the key that merges another mapping."""
    return bool(key.id == "scalar" and key.value != "<<")


def child(mapping: Node, key: str) -> Node | None:
    return next((value for k, value in mapping.value if k.value == key), None)


def _end(text: str, node: Node) -> int:
    """Where its last character is. The end mark of PyYAML is behind comments and empty lines that follow."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "scalar":
        if node.style not in ("|", ">"):
            return int(end)
        keeps = "+" in text[start:end].partition("\n")[0]
        stripped = start + len(text[start:end].rstrip())
        # With + the empty lines that follow belong to the text.
        blank = _EMPTY_LINES.match(text, stripped) if keeps else None
        return blank.end() - 1 if blank else stripped
    if node.flow_style:
        return int(end)
    last = node.value[-1]
    return _end(text, last[1] if node.id == "mapping" else last)


def _block(content: Any, column: int) -> str:
    import yaml

    dumped = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=1000)
    return "".join(f"{' ' * column}{line}\n" for line in dumped.splitlines())


def _flow(content: Any) -> str:
    import yaml

    dumped: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=True, width=100_000)
    return dumped.strip()
