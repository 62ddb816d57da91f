"""What every implementation of the hardware protocol owes the node program, run on each of them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import Fabric, FabricState, Isolation, IsolationState
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.hardware.protocol import Hardware
from imex_dra.hardware.simulated import HardwareFile, SimulatedHardware
from imex_dra.sandbox.noderoot import NodeRoot
from tests.nvml.stub import BOOT, CLUSTER, IN_PROGRESS, NOT_SUPPORTED, VERSION, StubGpu, StubHost

STATES = list(FabricState)


class Machine(Protocol):
    """A node whose hardware a test can change, and what reads it."""

    root: Path
    hardware: Hardware

    def become(self, state: FabricState, clique: int = 7) -> None: ...

    def boot(self, boot_id: str) -> None: ...

    def open_up(self) -> None:
        """Something else hands out channels."""
        ...

    def vanish(self) -> None:
        """What the hardware is read from is gone."""
        ...

    def spoil(self) -> None:
        """What the hardware is read from makes no sense."""
        ...


class NvmlMachine:
    def __init__(self, host: StubHost) -> None:
        self._host = host
        self.root = host.root
        self.hardware: Hardware = NvmlHardware(host.root)

    def become(self, state: FabricState, clique: int = 7) -> None:
        kinds = {
            FabricState.NONE: StubGpu(NOT_SUPPORTED),
            FabricState.PENDING: StubGpu(IN_PROGRESS),
            FabricState.OK: StubGpu(clique=clique),
            FabricState.BROKEN: StubGpu(status=999),
        }
        self._host.gpus(*[kinds[state]] * 4)

    def boot(self, boot_id: str) -> None:
        self._host.write("proc/sys/kernel/random/boot_id", f"{boot_id}\n")

    def open_up(self) -> None:
        self._host.write("etc/nvidia-container-runtime/config.toml", "")

    def vanish(self) -> None:
        (self.root / "usr/lib64/libnvidia-ml.so.1").unlink()

    def spoil(self) -> None:
        (self.root / "usr/lib64/libnvidia-ml.so.1").write_text("not a library")


class SimulatedMachine:
    def __init__(self, path: Path) -> None:
        self._node = NodeRoot(path)
        self.root = path
        self.hardware: Hardware = SimulatedHardware(path)
        self._node.make(HardwareFile(driver_version=VERSION, boot_id=BOOT), address="127.16.0.10")

    def become(self, state: FabricState, clique: int = 7) -> None:
        words = "" if state is FabricState.OK else f"somebody made it {state}"
        self._change(fabric=Fabric(state, words), partition=f"{CLUSTER}.{clique}")

    def boot(self, boot_id: str) -> None:
        self._change(boot_id=boot_id)

    def open_up(self) -> None:
        self._change(isolation=Isolation(IsolationState.OPEN, "a fault opened it"))

    def vanish(self) -> None:
        (self.root / "hardware.json").unlink()

    def spoil(self) -> None:
        (self.root / "hardware.json").write_bytes(b'{"fabric": {"state": "\xff')

    def _change(self, **changes: object) -> None:
        self._node.write_hardware(structs.replace(self._node.hardware(), **changes))


@pytest.fixture(params=["nvml", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "nvml":
        yield NvmlMachine(request.getfixturevalue("host"))
    else:
        yield SimulatedMachine(tmp_path)


@pytest.mark.parametrize("state", STATES)
async def test_every_state_is_told_with_a_reason_unless_all_is_well(machine: Machine, state: FabricState) -> None:
    machine.become(state)
    reading = await machine.hardware.read()
    assert reading.fabric.state is state
    assert bool(reading.fabric.reason) == (state is not FabricState.OK)


@pytest.mark.parametrize("state", STATES)
async def test_a_partition_is_named_if_and_only_if_the_fabric_is_ok(machine: Machine, state: FabricState) -> None:
    machine.become(state)
    reading = await machine.hardware.read()
    assert reading.partition == (f"{CLUSTER}.7" if state is FabricState.OK else "")


async def test_driver_version_channels_and_boot_are_told(machine: Machine) -> None:
    machine.become(FabricState.OK)
    reading = await machine.hardware.read()
    assert (reading.driver_version, reading.channel_count, reading.boot_id) == (VERSION, 2048, BOOT)


async def test_each_reading_is_a_fresh_one(machine: Machine) -> None:
    machine.become(FabricState.OK, clique=7)
    first = await machine.hardware.read()
    machine.become(FabricState.OK, clique=8)
    machine.boot("another")
    second = await machine.hardware.read()
    assert (first.partition, second.partition) == (f"{CLUSTER}.7", f"{CLUSTER}.8")
    assert second.boot_id == "another"


async def test_nothing_changed_reads_the_same(machine: Machine) -> None:
    machine.become(FabricState.OK)
    assert await machine.hardware.read() == await machine.hardware.read()


async def test_readings_at_the_same_time_agree(machine: Machine) -> None:
    machine.become(FabricState.OK)
    one, other = await asyncio.gather(machine.hardware.read(), machine.hardware.read())
    assert one == other
    assert one.fabric.state is FabricState.OK


async def test_hardware_that_is_not_there_yet_is_waited_for(machine: Machine) -> None:
    machine.vanish()
    fabric = (await machine.hardware.read()).fabric
    assert fabric.state is FabricState.PENDING
    assert fabric.reason


async def test_nonsense_never_raises_and_never_proves_anything(machine: Machine) -> None:
    machine.spoil()
    fabric = (await machine.hardware.read()).fabric
    assert fabric.state in (FabricState.PENDING, FabricState.BROKEN)
    assert fabric.reason


async def test_isolation_is_enforced_until_something_opens_it(machine: Machine) -> None:
    machine.become(FabricState.OK)
    assert (await machine.hardware.read()).isolation == Isolation(IsolationState.ENFORCED)
    machine.open_up()
    isolation = (await machine.hardware.read()).isolation
    assert isolation.state is IsolationState.OPEN
    assert isolation.reason


def test_a_container_gets_the_channel_as_a_device_that_everybody_may_write(machine: Machine) -> None:
    (node,) = machine.hardware.container_edits(5).device_nodes
    assert (node.type, node.major, node.minor) == ("c", 234, 5)
    assert node.path == "/dev/nvidia-caps-imex-channels/channel5"
    assert (node.file_mode, node.permissions) == (0o666, "rw")


def test_the_major_is_the_one_of_the_last_load(machine: Machine) -> None:
    (machine.root / "proc/devices").write_text("Character devices:\n511 nvidia-caps-imex-channels\n")
    (node,) = machine.hardware.container_edits(5).device_nodes
    assert node.major == 511


def test_a_driver_without_channels_is_an_error_that_says_so(machine: Machine) -> None:
    (machine.root / "proc/devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(Misconfigured, match="lists no nvidia-caps-imex-channels"):
        machine.hardware.container_edits(5)


def test_nvml_adds_nothing_but_the_device_node(host: StubHost) -> None:
    edits = NvmlHardware(host.root).container_edits(3)
    assert (edits.env, edits.mounts) == ((), ())


async def test_a_simulated_fabric_that_is_ok_must_be_in_a_partition(tmp_path: Path) -> None:
    content = msgspec.json.encode(HardwareFile(Fabric(FabricState.OK)))
    (tmp_path / "hardware.json").write_bytes(content)
    reading = await SimulatedHardware(tmp_path).read()
    assert (reading.fabric.state, reading.partition) == (FabricState.BROKEN, "")
