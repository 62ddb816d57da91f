"""The interface between `imex node` and the hardware. NVML and the sandbox's simulated node implement it."""

from collections.abc import Sequence
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
    driver_root: str = ""
    """Where the driver's programs are on the host; empty if they do not run from a driver root."""
    imex_problem: str = ""
    """Why nvidia-imex cannot start on this node, as far as the GPU driver tells, and the next step."""


class Hardware(Protocol):
    period: float
    """Seconds between two readings."""

    async def read(self) -> Reading: ...

    def container_edits(self, claim_uid: str, channels: Sequence[int]) -> ContainerEdits:
        """The CDI edits that give a container these channels; the first is the claim's own. Creates on the host
        what they refer to. Misconfigured if the driver has no channels.
        """
        ...

    def remove_devices(self, claim_uid: str) -> None:
        """Removes what `container_edits` created for this claim."""
        ...

    def claims_with_devices(self) -> set[str]:
        """UIDs of claims for which `container_edits` created something that must be removed."""
        ...
