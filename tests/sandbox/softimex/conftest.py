from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox.softimex.rack import Node, Rack
from tests.sandbox.softimex.workload import Workload


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
def start_workload() -> Iterator[Callable[[Node, int | Path], Workload]]:
    """Start a process on a node, with a channel by its number or by the path of any file."""
    workloads: list[Workload] = []

    def start(node: Node, channel: int | Path) -> Workload:
        workloads.append(Workload(node, channel))
        return workloads[-1]

    yield start
    for workload in workloads:
        workload.end()
