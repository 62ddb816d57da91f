"""The hardware of a simulated node, read from its root directory in any state."""

from pathlib import Path

import pytest

from imex_dra.api.names import PartitionId, channel_path
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.protocol import Reading
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedHardware

OK = HardwareFile(Fabric(FabricState.OK), "7b.1", "580.95.05", 2048, "boot-1")


@pytest.fixture
def root(tmp_path: Path) -> NodeRoot:
    root = NodeRoot(tmp_path)
    root.make(OK, address="10.0.0.1", channel_major=238)
    return root


async def test_each_read_sees_the_current_file(root: NodeRoot) -> None:
    hardware = SimulatedHardware(root.path)
    fabric, partition = Fabric(FabricState.OK), PartitionId("7b.1")
    assert await hardware.read() == Reading(fabric, partition, "580.95.05", 2048, "boot-1", channel_major=238)
    root.load_driver(99)
    assert (await hardware.read()).channel_major == 99
    (root.path / "proc/devices").unlink()
    assert (await hardware.read()).channel_major == 0
    root.write_hardware(HardwareFile(Fabric(FabricState.BROKEN, "a fault"), "7b.1", boot_id="boot-2"))
    reading = await hardware.read()
    assert (reading.fabric, reading.boot_id) == (Fabric(FabricState.BROKEN, "a fault"), "boot-2")


def test_all_channels_of_a_claim_have_a_file(root: NodeRoot) -> None:
    """From which the simulated runtime makes the devices of a container."""
    edits = SimulatedHardware(root.path).container_edits("c1", (7, 0, 1))
    assert [node.path for node in edits.device_nodes] == [channel_path(channel) for channel in (7, 0, 1)]
    assert all((root.path / node.path.lstrip("/")).is_file() for node in edits.device_nodes)


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


async def test_the_fabric_is_pending_before_hardware_json_exists(tmp_path: Path) -> None:
    reading = await SimulatedHardware(tmp_path).read()
    assert reading.fabric == Fabric(FabricState.PENDING, "hardware.json of the simulated node does not exist yet")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"fabric":"ok"}', b'{"fabric":{"state":"fine"}}', b'{"partition":"\xff"}']
)
async def test_the_fabric_is_broken_and_not_none_if_hardware_json_cannot_be_read(
    root: NodeRoot, content: bytes
) -> None:
    (root.path / "hardware.json").write_bytes(content)
    reading = await SimulatedHardware(root.path).read()
    assert reading.fabric.state is FabricState.BROKEN
    assert reading.fabric.reason.startswith("hardware.json of the simulated node cannot be read: ")


async def test_the_fabric_is_broken_if_hardware_json_is_a_directory(root: NodeRoot) -> None:
    (root.path / "hardware.json").unlink()
    (root.path / "hardware.json").mkdir()
    assert (await SimulatedHardware(root.path).read()).fabric.state is FabricState.BROKEN


def test_a_container_gets_the_device_the_channel_file_and_the_client_socket(root: NodeRoot) -> None:
    edits = SimulatedHardware(root.path).container_edits("c1", (7,))
    (node,) = edits.device_nodes
    assert (node.major, node.minor, node.path) == (238, 7, "/dev/nvidia-caps-imex-channels/channel7")
    assert {mount.container_path: (mount.host_path, *mount.options) for mount in edits.mounts} == {
        "/run/imex/channel": (str(root.path / "dev/nvidia-caps-imex-channels/channel7"), "rw", "bind"),
        "/run/imex/client": (str(root.path / "run/client"), "ro", "bind"),
    }
    assert (root.path / "run/client").is_dir()  # even if no daemon has run yet
    assert edits.env == ("IMEX_CLIENT_SOCKET=/run/imex/client/imex.sock",)
    channel_file = root.path / "dev/nvidia-caps-imex-channels/channel7"
    assert channel_file.stat().st_mode & 0o777 == 0o666


def test_the_channel_file_is_not_replaced(root: NodeRoot) -> None:
    """A process that has it open must still be able to prove that it has the channel."""
    hardware, channel_file = SimulatedHardware(root.path), root.path / "dev/nvidia-caps-imex-channels/channel7"
    hardware.container_edits("c1", (7,))
    inode = channel_file.stat().st_ino
    hardware.container_edits("c1", (7,))
    assert channel_file.stat().st_ino == inode


def test_without_the_gpu_driver_there_is_no_channel(root: NodeRoot) -> None:
    (root.path / "proc/devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(Misconfigured, match="the GPU driver is not loaded"):
        SimulatedHardware(root.path).container_edits("c1", (7,))


def test_a_reboot_empties_run_and_dev_and_keeps_the_disk(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    root.make(HardwareFile(boot_id="first", driver_version="580"), address="127.16.0.10")
    for directory in ("run/cdi", "run/imex", "etc"):
        (tmp_path / directory).mkdir()
    for lost in ("run/cdi/spec.json", "run/imex/control", "dev/nvidia-caps-imex-channels/channel7"):
        (tmp_path / lost).touch()
    for kept in ("run/fabric-id", "etc/machine-id"):
        (tmp_path / kept).write_text("kept")
    root.boot("second")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["fabric-id"]
    assert not list((tmp_path / "dev/nvidia-caps-imex-channels").iterdir())
    assert (tmp_path / "etc/machine-id").read_text() == "kept"
    assert root.hardware() == HardwareFile(boot_id="second", driver_version="580")
