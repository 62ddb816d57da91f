"""The interface between `imex node` and the hardware. NVML and the sandbox's simulated node implement it."""

from typing import Protocol

from msgspec import Struct

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, GpuFabric, Isolation
from imex_dra.cdi.spec import ContainerEdits


class Reading(Struct, frozen=True):
    """The state of the hardware at one moment."""

    fabric: Fabric = Fabric()
    partition: PartitionId = PartitionId("")
    """Set if and only if the fabric is ok."""
    driver_version: str = ""
    channel_count: int = 0
    boot_id: str = ""
    isolation: Isolation = Isolation()
    channel_major: int = 0
    """Major number of the channel devices; 0 while the GPU driver offers none."""
    product: str = ""
    """Product name of the GPUs."""
    gpu_count: int = 0
    """NVIDIA GPUs on the PCI bus; 0 if it cannot be read."""
    gpus: tuple[GpuFabric, ...] = ()


class Hardware(Protocol):
    period: float
    """Seconds between two readings."""

    async def read(self) -> Reading: ...

    def container_edits(self, channel: int) -> ContainerEdits:
        """The CDI edits that give a container this channel; Misconfigured if the driver has no channels."""
        ...
