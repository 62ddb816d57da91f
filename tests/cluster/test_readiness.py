"""When a cluster is ready, decided from what the API server lists."""

import pytest

from imex_dra.api.meta import ObjectMeta
from imex_dra.sandbox.cluster.readiness import Node, NodeSpec, Taint, obstacle

A, B = (Node(ObjectMeta(name=name)) for name in "ab")
TAINTED = Node(ObjectMeta(name="b"), NodeSpec((Taint("node.kubernetes.io/not-ready"),)))


@pytest.mark.parametrize(
    ("nodes", "seated", "words"),
    [
        ([A, B], None, ""),
        ([A, B], {"a", "b"}, ""),
        ([A, B, Node(ObjectMeta(name="c"))], {"a", "b", "c"}, ""),
        ([], None, "2 of 2 nodes are not Ready, a among them"),
        ([A], {"a", "b"}, "1 of 2 nodes are not Ready, b among them"),
        ([A, TAINTED], {"a", "b"}, "1 of 2 nodes are not Ready, b among them"),
        ([A, B], {"a"}, "1 of 2 nodes offer no seats, b among them"),
        ([A, B], set(), "2 of 2 nodes offer no seats, a among them"),
    ],
)
def test_what_is_missing(nodes: list[Node], seated: set[str] | None, words: str) -> None:
    assert obstacle(["a", "b"], nodes, seated) == words
