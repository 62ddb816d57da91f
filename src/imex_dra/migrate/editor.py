"""A file of manifests that can be edited: each value that `lint` reads, with its node in the text."""

from typing import Any

from imex_dra.lint.documents import Source, read_source
from imex_dra.lint.values import Value
from imex_dra.migrate.yamltext import Node, NotEditable, YamlText, is_plain_key


class Editor:
    """Raises Unreadable."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.source: Source = read_source(name, text)
        self._json = text.lstrip().startswith("{")
        self.yaml = YamlText("" if self._json else text)
        self._text = text
        # By identity: values are equal if their contents are. `source` keeps them alive.
        self._nodes: dict[int, tuple[int, Node]] = {}
        if not self._json:
            for number, (value, node) in enumerate(zip(self.source.documents, self.yaml.roots, strict=True)):
                if number not in self.yaml.aliases:
                    self._add(value, node, number)

    def edited(self) -> str:
        return self._text if self._json else self.yaml.edited()

    def _add(self, value: Value, node: Node, number: int) -> None:
        self._nodes[id(value)] = (number, node)
        if node.id == "mapping":
            entries = list(value.items())
            # Duplicate keys: which of them counts is not clear to a reader. Merged mappings (<<) have entries that
            # are not in their node. Neither can be edited.
            if len(entries) == len(node.value) and all(is_plain_key(key) for key, _ in node.value):
                for (_, item), (_, item_node) in zip(entries, node.value, strict=True):
                    self._add(item, item_node, number)
        elif node.id == "sequence":
            for item, item_node in zip(value.elements(), node.value, strict=True):
                self._add(item, item_node, number)

    def node(self, value: Value) -> Node:
        if id(value) in self._nodes:
            return self._nodes[id(value)][1]
        if self._json:
            raise NotEditable("it is JSON, and only YAML can be edited: convert it first")
        raise NotEditable(
            "its document has YAML aliases, merges, or duplicate or complex keys: write them out first"
        )

    def insert_before(self, value: Value, content: dict[str, Any]) -> None:
        """A document before the one with this value."""
        self.node(value)
        self.yaml.insert_document(self._nodes[id(value)][0], content)

    def remove(self, holder: Value, key: str, indexes: set[int]) -> None:
        """Elements of a list in a mapping; if none is left, the entry."""
        if not indexes:
            return
        if len(indexes) == len(holder[key].elements()):
            self.yaml.remove_entry(self.node(holder), key)
        else:
            self.yaml.remove_elements(self.node(holder[key]), indexes)
