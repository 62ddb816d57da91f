from collections.abc import Iterator

import pytest

from tests.daemon.node import Node, Rack


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack()
    yield rack
    rack.close()


@pytest.fixture
def node(rack: Rack) -> Node:
    return Node(rack, 0)
