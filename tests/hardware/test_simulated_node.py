"""A simulated node's hardware: what its root directory says, whatever state that is in."""

from pathlib import Path

import pytest

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.simulated import HardwareFile, SimulatedHardware
from imex_dra.sandbox.noderoot import NodeRoot

OK = HardwareFile(Fabric(FabricState.OK), "7b.1", "580.95.05", 2048, "boot-1")


@pytest.fixture
def root(tmp_path: Path) -> NodeRoot:
    root = NodeRoot(tmp_path)
    root.make(OK, address="10.0.0.1", channel_major=238)
    return root


async def test_every_reading_is_a_fresh_one(root: NodeRoot) -> None:
    hardware = SimulatedHardware(root.path)
    fabric, partition = Fabric(FabricState.OK), PartitionId("7b.1")
    assert await hardware.read() == Reading(fabric, partition, "580.95.05", 2048, "boot-1")
    root.write_hardware(HardwareFile(Fabric(FabricState.BROKEN, "a fault"), "7b.1", boot_id="boot-2"))
    reading = await hardware.read()
    assert (reading.fabric, reading.boot_id) == (Fabric(FabricState.BROKEN, "a fault"), "boot-2")


@pytest.mark.parametrize("state", FabricState)
@pytest.mark.parametrize("partition", ["", "7b.1"])
async def test_the_partition_is_set_if_and_only_if_the_fabric_is_ok(
    root: NodeRoot, state: FabricState, partition: str
) -> None:
    root.write_hardware(HardwareFile(Fabric(state), partition))
    reading = await SimulatedHardware(root.path).read()
    assert bool(reading.partition) == (reading.fabric.state is FabricState.OK)
    if partition:
        assert reading.fabric.state is state


async def test_before_the_rack_model_wrote_anything_the_fabric_is_pending(tmp_path: Path) -> None:
    reading = await SimulatedHardware(tmp_path).read()
    assert reading.fabric == Fabric(FabricState.PENDING, "hardware.json of the simulated node is not there yet")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"fabric":"ok"}', b'{"fabric":{"state":"fine"}}', b'{"partition":"\xff"}']
)
async def test_what_can_t_be_read_is_broken_and_never_none(root: NodeRoot, content: bytes) -> None:
    (root.path / "hardware.json").write_bytes(content)
    reading = await SimulatedHardware(root.path).read()
    assert reading.fabric.state is FabricState.BROKEN
    assert reading.fabric.reason.startswith("hardware.json of the simulated node can't be read: ")


async def test_a_directory_in_its_place_is_broken_too(root: NodeRoot) -> None:
    (root.path / "hardware.json").unlink()
    (root.path / "hardware.json").mkdir()
    assert (await SimulatedHardware(root.path).read()).fabric.state is FabricState.BROKEN


def test_a_container_gets_the_device_the_proof_and_the_way_to_the_daemon(root: NodeRoot) -> None:
    edits = SimulatedHardware(root.path).container_edits(7)
    (node,) = edits.device_nodes
    assert (node.major, node.minor, node.path) == (238, 7, "/dev/nvidia-caps-imex-channels/channel7")
    assert {mount.container_path: (mount.host_path, *mount.options) for mount in edits.mounts} == {
        "/run/imex/channel": (str(root.path / "dev/nvidia-caps-imex-channels/channel7"), "rw", "bind"),
        "/run/imex/client": (str(root.path / "run/client"), "ro", "bind"),
    }
    assert (root.path / "run/client").is_dir()  # whether a daemon was ever there or not
    assert edits.env == ("IMEX_CLIENT_SOCKET=/run/imex/client/imex.sock",)
    proof = root.path / "dev/nvidia-caps-imex-channels/channel7"
    assert proof.stat().st_mode & 0o777 == 0o666


def test_the_proof_of_a_channel_stays_the_same_file(root: NodeRoot) -> None:
    """A process that holds it open must still be able to prove its channel."""
    hardware, proof = SimulatedHardware(root.path), root.path / "dev/nvidia-caps-imex-channels/channel7"
    hardware.container_edits(7)
    inode = proof.stat().st_ino
    hardware.container_edits(7)
    assert proof.stat().st_ino == inode


def test_without_a_driver_there_is_no_channel(root: NodeRoot) -> None:
    (root.path / "proc/devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(Misconfigured, match="the GPU driver is not loaded"):
        SimulatedHardware(root.path).container_edits(7)
