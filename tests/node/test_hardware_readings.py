"""When the hardware is read: not while the daemon pod is gone, as it is before the GPU driver is unloaded."""

from typing import Any

import pytest

from imex_dra.api.nvlinknode import FabricState
from imex_dra.daemon.state import DaemonState
from imex_dra.hardware.protocol import Reading
from imex_dra.node.state import NodeState, follow_hardware
from tests.node.publishing_node import running
from tests.node.snapshots import READING, reading
from tests.waiting import until_async

GONE = DaemonState(is_supervised=False)


class Hardware:
    period = 0.001

    def __init__(self, reading: Reading = READING) -> None:
        self.reading, self.readings, self.looks = reading, 0, 0

    async def read(self) -> Reading:
        self.readings += 1
        return self.reading


async def test_the_gpu_driver_is_not_used_while_the_daemon_pod_is_gone() -> None:
    hardware: Any = Hardware()
    state = NodeState("n1")
    state.update(daemon=GONE)
    async with running(follow_hardware(hardware, state)):
        await until_async(lambda: hardware.readings == 1)  # a program that has just started knows nothing yet
        # Longer than a hundred periods.
        await until_async(lambda: _counted(hardware) > 20)
        assert hardware.readings == 1
        assert state.snapshot.reading == READING
        state.update(daemon=DaemonState())
        await until_async(lambda: hardware.readings > 3)


@pytest.mark.parametrize("fabric", [FabricState.NONE, FabricState.PENDING, FabricState.BROKEN])
async def test_a_node_that_needs_no_daemon_or_is_not_up_is_read_without_one(fabric: FabricState) -> None:
    hardware: Any = Hardware(reading(fabric))
    state = NodeState("n1")
    state.update(daemon=GONE)
    async with running(follow_hardware(hardware, state)):
        await until_async(lambda: hardware.readings > 3)


def _counted(hardware: Any) -> int:
    """How often the test has looked; `until_async` pauses in between."""
    hardware.looks += 1
    return int(hardware.looks)
