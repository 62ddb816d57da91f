"""A node of a simulated rack: what the rack model wrote into the node's root directory.

Faults rewrite `hardware.json` atomically; every reading is a fresh one. A channel is a regular file that stands
for the device, because a device node without a driver can't be opened; a process proves its channel to the
soft IMEX daemon with a descriptor of that file. The way to the daemon is a directory with a socket in it, not the
socket: a daemon that comes after this one makes another, and containers must find that, too.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct, field

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, FabricState, Isolation
from imex_dra.cdi.spec import ContainerEdits, Mount
from imex_dra.hardware.devices import channel_major, channel_node
from imex_dra.hardware.protocol import Reading

CHANNEL_PROOF = "/run/imex/channel"
CLIENTS = "/run/imex/client"
CLIENT_SOCKET_VARIABLE = "IMEX_CLIENT_SOCKET"


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
    def __init__(self, root: Path) -> None:
        self._root = root

    async def read(self) -> Reading:
        return await asyncio.to_thread(self._read)

    def container_edits(self, channel: int) -> ContainerEdits:
        """A character device with the right numbers, as on a real node, and what the soft IMEX asks for."""
        proof = self._root / "dev/nvidia-caps-imex-channels" / f"channel{channel}"
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()
        proof.chmod(0o666)
        clients = self._root / "run/client"
        clients.mkdir(mode=0o755, parents=True, exist_ok=True)
        return ContainerEdits(
            env=(f"{CLIENT_SOCKET_VARIABLE}={CLIENTS}/imex.sock",),
            device_nodes=(channel_node(channel_major(self._root / "proc/devices"), channel),),
            mounts=(
                Mount(str(proof), CHANNEL_PROOF, ("rw", "bind")),
                Mount(str(clients), CLIENTS, ("ro", "bind")),
            ),
        )

    def _read(self) -> Reading:
        path = self._root / "hardware.json"
        try:
            file = msgspec.json.decode(path.read_bytes(), type=HardwareFile)
        except FileNotFoundError:
            return Reading(Fabric(FabricState.PENDING, f"{path.name} of the simulated node is not there yet"))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            return Reading(Fabric(FabricState.BROKEN, f"{path.name} of the simulated node can't be read: {error}"))
        return reading(file)


def reading(file: HardwareFile) -> Reading:
    fabric, ok = file.fabric, file.fabric.state is FabricState.OK
    if ok and not file.partition:
        fabric, ok = Fabric(FabricState.BROKEN, "the simulated node's fabric is ok, but in no partition"), False
    return Reading(
        fabric=fabric,
        partition=PartitionId(file.partition if ok else ""),
        driver_version=file.driver_version,
        channel_count=file.channel_count,
        boot_id=file.boot_id,
        isolation=file.isolation,
    )
