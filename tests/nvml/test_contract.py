"""The contract of the `Hardware` protocol, run on each implementation: NVML and the simulated node."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import Fabric, FabricState, Isolation, IsolationState
from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.hardware.protocol import Hardware
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedHardware
from tests.devicenodes import description, require_mknod
from tests.nvml.stub import BOOT_ID, CLUSTER_UUID, IN_PROGRESS, NOT_SUPPORTED, VERSION, StubGpu, StubHost

STATES = list(FabricState)


class Machine(Protocol):
    """A node whose hardware a test can change, and the implementation that reads it."""

    root: Path
    hardware: Hardware

    def set_fabric(self, state: FabricState, clique: int = 7) -> None: ...

    def set_boot_id(self, boot_id: str) -> None: ...

    def break_isolation(self) -> None:
        """Makes another component give out channels."""
        ...

    def remove_source(self) -> None:
        """Removes what the hardware is read from."""
        ...

    def corrupt_source(self) -> None:
        """Makes what the hardware is read from unreadable."""
        ...


class NvmlMachine:
    def __init__(self, host: StubHost) -> None:
        self._host = host
        self.root = host.root
        self.hardware: Hardware = NvmlHardware(host.root)

    def set_fabric(self, state: FabricState, clique: int = 7) -> None:
        gpus = {
            FabricState.NONE: StubGpu(NOT_SUPPORTED),
            FabricState.PENDING: StubGpu(IN_PROGRESS),
            FabricState.OK: StubGpu(clique=clique),
            FabricState.BROKEN: StubGpu(status=999),
        }
        self._host.gpus(*[gpus[state]] * 4)

    def set_boot_id(self, boot_id: str) -> None:
        self._host.write("proc/sys/kernel/random/boot_id", f"{boot_id}\n")

    def break_isolation(self) -> None:
        self._host.write("etc/nvidia-container-runtime/config.toml", "")

    def remove_source(self) -> None:
        (self.root / "usr/lib64/libnvidia-ml.so.1").unlink()

    def corrupt_source(self) -> None:
        (self.root / "usr/lib64/libnvidia-ml.so.1").write_text("not a library")


class SimulatedMachine:
    def __init__(self, path: Path) -> None:
        self._node = NodeRoot(path)
        self.root = path
        self.hardware: Hardware = SimulatedHardware(path)
        self._node.make(HardwareFile(driver_version=VERSION, boot_id=BOOT_ID), address="127.16.0.10")

    def set_fabric(self, state: FabricState, clique: int = 7) -> None:
        reason = "" if state is FabricState.OK else f"the test made it {state}"
        self._change(fabric=Fabric(state, reason), partition=f"{CLUSTER_UUID}.{clique}")

    def set_boot_id(self, boot_id: str) -> None:
        self._change(boot_id=boot_id)

    def break_isolation(self) -> None:
        self._change(isolation=Isolation(IsolationState.OPEN, "a fault breaks isolation"))

    def remove_source(self) -> None:
        (self.root / "hardware.json").unlink()

    def corrupt_source(self) -> None:
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
async def test_every_fabric_state_but_ok_has_a_reason(machine: Machine, state: FabricState) -> None:
    machine.set_fabric(state)
    reading = await machine.hardware.read()
    assert reading.fabric.state is state
    assert bool(reading.fabric.reason) == (state is not FabricState.OK)


@pytest.mark.parametrize("state", STATES)
async def test_the_partition_is_set_if_and_only_if_the_fabric_is_ok(machine: Machine, state: FabricState) -> None:
    machine.set_fabric(state)
    reading = await machine.hardware.read()
    assert reading.partition == (f"{CLUSTER_UUID}.7" if state is FabricState.OK else "")


async def test_driver_version_channel_count_and_boot_id_are_reported(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK)
    reading = await machine.hardware.read()
    assert (reading.driver_version, reading.channel_count, reading.boot_id) == (VERSION, 2048, BOOT_ID)


async def test_each_reading_reflects_the_current_state(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK, clique=7)
    first = await machine.hardware.read()
    machine.set_fabric(FabricState.OK, clique=8)
    machine.set_boot_id("another")
    second = await machine.hardware.read()
    assert (first.partition, second.partition) == (f"{CLUSTER_UUID}.7", f"{CLUSTER_UUID}.8")
    assert second.boot_id == "another"


async def test_two_readings_of_unchanged_hardware_are_equal(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK)
    assert await machine.hardware.read() == await machine.hardware.read()


async def test_concurrent_readings_are_equal(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK)
    one, other = await asyncio.gather(machine.hardware.read(), machine.hardware.read())
    assert one == other
    assert one.fabric.state is FabricState.OK


async def test_missing_hardware_is_pending(machine: Machine) -> None:
    machine.remove_source()
    fabric = (await machine.hardware.read()).fabric
    assert fabric.state is FabricState.PENDING
    assert fabric.reason


async def test_unreadable_hardware_is_never_ok_and_never_none(machine: Machine) -> None:
    machine.corrupt_source()
    fabric = (await machine.hardware.read()).fabric
    assert fabric.state in (FabricState.PENDING, FabricState.BROKEN)
    assert fabric.reason


async def test_isolation_is_enforced_until_another_component_gives_out_channels(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK)
    assert (await machine.hardware.read()).isolation == Isolation(IsolationState.ENFORCED)
    machine.break_isolation()
    isolation = (await machine.hardware.read()).isolation
    assert isolation.state is IsolationState.OPEN
    assert isolation.reason


def edits(machine: Machine, *channels: int) -> ContainerEdits:
    require_mknod(machine.root / "dev")
    return machine.hardware.container_edits("c1", channels)


def test_a_container_gets_the_channel_as_a_world_writable_device(machine: Machine) -> None:
    found = edits(machine, 5)
    (node,) = found.device_nodes
    assert (node.type, node.major, node.minor) == ("c", 234, 5)
    assert (node.file_mode, node.permissions) == (0o666, "rw")
    paths = {node.path, *(mount.container_path for mount in found.mounts)}
    assert "/dev/nvidia-caps-imex-channels/channel5" in paths


def test_a_claim_of_several_channels_gets_all_of_them(machine: Machine) -> None:
    assert [node.minor for node in edits(machine, 5, 0, 1).device_nodes] == [5, 0, 1]


def test_the_major_is_read_again_for_each_claim(machine: Machine) -> None:
    (machine.root / "proc/devices").write_text("Character devices:\n511 nvidia-caps-imex-channels\n")
    (node,) = edits(machine, 5).device_nodes
    assert node.major == 511


def test_devices_of_a_claim_are_removed(machine: Machine) -> None:
    edits(machine, 5)
    machine.hardware.remove_devices("c1")
    machine.hardware.remove_devices("never prepared")
    assert machine.hardware.claims_with_devices() == set()


async def test_our_own_device_nodes_keep_isolation(machine: Machine) -> None:
    machine.set_fabric(FabricState.OK)
    edits(machine, 5)
    assert (await machine.hardware.read()).isolation == Isolation(IsolationState.ENFORCED)


def test_a_driver_without_channels_is_an_error_that_names_the_cause(machine: Machine) -> None:
    (machine.root / "proc/devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(Misconfigured, match="has no nvidia-caps-imex-channels"):
        machine.hardware.container_edits("c1", [5])


def test_nvml_hardware_mounts_the_node_that_it_has_created_on_the_host(host: StubHost) -> None:
    require_mknod(host.root / "dev")
    hardware = NvmlHardware(host.root)
    (mount,) = hardware.container_edits("c1", [3]).mounts
    assert description(host.root / mount.host_path.lstrip("/")) == (234, 3, 0o666)
    assert hardware.claims_with_devices() == {"c1"}


async def test_a_simulated_fabric_that_is_ok_without_a_partition_is_broken(tmp_path: Path) -> None:
    content = msgspec.json.encode(HardwareFile(Fabric(FabricState.OK)))
    (tmp_path / "hardware.json").write_bytes(content)
    reading = await SimulatedHardware(tmp_path).read()
    assert (reading.fabric.state, reading.partition) == (FabricState.BROKEN, "")
