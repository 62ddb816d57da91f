"""The hardware of a simulated node, read from the node's root directory.

Faults rewrite `hardware.json` atomically, and each read sees the current file. A container gets the channel's
device node, which cannot be opened without the GPU driver, and two mounts for the soft IMEX daemon. The host has
no nodes, because simulated racks may not create any, so a pod with a user namespace does not start. The mounts:

- A regular file that represents the channel. A process proves that it has the channel by passing a file descriptor
  of this file to the soft IMEX daemon.
- The directory with the daemon's client socket, not the socket itself: after a restart the daemon creates a new
  socket, and running containers must find it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from imex_dra.api.names import PartitionId, channel_path
from imex_dra.api.nvlinknode import Fabric, FabricState, GpuFabric, Isolation
from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import ContainerEdits, DeviceNode, Mount
from imex_dra.hardware.channelnodes import CHANNEL_MODE
from imex_dra.hardware.host import channel_major
from imex_dra.hardware.protocol import Reading

CHANNELS = "dev/nvidia-caps-imex-channels"
"""Below the root of a node."""

_CHANNEL_FILE = "/run/imex/channel"
_CLIENT_DIRECTORY = "/run/imex/client"
_CLIENT_SOCKET_VARIABLE = "IMEX_CLIENT_SOCKET"


class SimulatedGpu(Struct, frozen=True, rename="camel"):
    uuid: str
    name: str
    chassis_serial: str = ""
    slot: int = 0
    tray: int = 0


class HardwareFile(Struct, frozen=True, rename="camel", omit_defaults=False):
    """`hardware.json`."""

    fabric: Fabric = Fabric()
    partition: str = ""
    driver_version: str = ""
    channel_count: int = 2048
    boot_id: str = field(name="bootID", default="")
    isolation: Isolation = Isolation()
    profile: str = ""
    gpus: tuple[SimulatedGpu, ...] = ()


class SimulatedHardware:
    period = 1.0

    def __init__(self, root: Path) -> None:
        self._root = root

    async def read(self) -> Reading:
        return await asyncio.to_thread(self._read)

    def container_edits(self, claim_uid: str, channels: Sequence[int]) -> ContainerEdits:
        """Device nodes that the runtime creates, and the mounts and the variable for the soft IMEX daemon."""
        directory = self._root / CHANNELS
        directory.mkdir(parents=True, exist_ok=True)
        # Of all channels: in the simulated runtime a file stands for each device node of a container.
        for channel in channels:
            file = directory / f"channel{channel}"
            file.touch()
            file.chmod(CHANNEL_MODE)
        clients = self._root / "run/client"
        clients.mkdir(mode=0o755, parents=True, exist_ok=True)
        major = channel_major(self._root / "proc/devices")
        return ContainerEdits(
            env=(f"{_CLIENT_SOCKET_VARIABLE}={_CLIENT_DIRECTORY}/imex.sock",),
            device_nodes=tuple(_device_node(major, channel) for channel in channels),
            mounts=(
                Mount(str(directory / f"channel{channels[0]}"), _CHANNEL_FILE, ("rw", "bind")),
                Mount(str(clients), _CLIENT_DIRECTORY, ("ro", "bind")),
            ),
        )

    def remove_devices(self, claim_uid: str) -> None:
        """The channel's file belongs to the soft IMEX daemon."""

    def claims_with_devices(self) -> set[str]:
        return set()

    def _read(self) -> Reading:
        path = self._root / "hardware.json"
        try:
            file = msgspec.json.decode(path.read_bytes(), type=HardwareFile)
        except FileNotFoundError:
            return Reading(Fabric(FabricState.PENDING, f"{path.name} of the simulated node does not exist yet"))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            return Reading(
                Fabric(FabricState.BROKEN, f"{path.name} of the simulated node cannot be read: {error}")
            )
        return msgspec.structs.replace(to_reading(file), channel_major=self._channel_major())

    def _channel_major(self) -> int:
        try:
            return channel_major(self._root / "proc/devices")
        except Misconfigured:
            return 0


def _device_node(major: int, channel: int) -> DeviceNode:
    return DeviceNode(channel_path(channel), major, channel, "c", file_mode=CHANNEL_MODE, permissions="rw")


def to_reading(file: HardwareFile) -> Reading:
    fabric, ok = file.fabric, file.fabric.state is FabricState.OK
    if ok and not file.partition:
        fabric, ok = (
            Fabric(FabricState.BROKEN, "the fabric of the simulated node is ok, but has no partition"),
            False,
        )
    return Reading(
        fabric=fabric,
        partition=PartitionId(file.partition if ok else ""),
        driver_version=file.driver_version,
        product=file.gpus[0].name if file.gpus else "",
        gpu_count=len(file.gpus),
        gpus=tuple(GpuFabric(index, fabric.state, fabric.reason) for index in range(len(file.gpus))),
        channel_count=file.channel_count,
        boot_id=file.boot_id,
        isolation=file.isolation,
    )
