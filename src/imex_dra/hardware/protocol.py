"""The questions we ask of a node's hardware; NVML and a simulated rack answer them."""

from typing import Protocol

from msgspec import Struct

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, Isolation
from imex_dra.cdi.spec import ContainerEdits


class Reading(Struct, frozen=True):
    """The hardware at one moment."""

    fabric: Fabric = Fabric()
    partition: PartitionId = PartitionId("")
    """Set if and only if the fabric is ok."""
    driver_version: str = ""
    channel_count: int = 0
    boot_id: str = ""
    isolation: Isolation = Isolation()


class Hardware(Protocol):
    async def read(self) -> Reading: ...

    def container_edits(self, channel: int) -> ContainerEdits:
        """What gives a container this channel; Misconfigured if the driver has no channels."""
        ...
