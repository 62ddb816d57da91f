from collections.abc import Iterator

import pytest

from tests.daemon.simulatednode import Rack, SimulatedNode


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack()
    yield rack
    rack.close()


@pytest.fixture
def node(rack: Rack) -> SimulatedNode:
    return SimulatedNode(rack, 0)
