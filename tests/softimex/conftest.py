from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.softimex.rack import Node, Rack
from tests.softimex.workload import Workload


@pytest.fixture
def make_rack() -> Iterator[Callable[[int], Rack]]:
    racks: list[Rack] = []

    def make(size: int) -> Rack:
        racks.append(Rack(size))
        return racks[-1]

    yield make
    for rack in racks:
        rack.close()


@pytest.fixture
def on() -> Iterator[Callable[[Node, int | Path], Workload]]:
    """A process on a node, with a channel by number or any other file."""
    workloads: list[Workload] = []

    def make(node: Node, channel: int | Path) -> Workload:
        workloads.append(Workload(node, channel))
        return workloads[-1]

    yield make
    for workload in workloads:
        workload.end()
