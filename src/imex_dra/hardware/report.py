"""What NVML and the kernel say of a node, word for word, before anybody judges it.

The NVML part crosses a process boundary as JSON: it is asked in a child (`probe`), because a call into the
driver may hang or crash, and neither may happen to the process that serves the kubelet.
"""

from msgspec import Struct

from imex_dra.api.nvlinknode import Isolation


class Failure(Struct, frozen=True):
    """An NVML call that did not succeed."""

    call: str
    code: int
    """As NVML returned it."""
    words: str


class FabricInfo(Struct, frozen=True):
    """`nvmlGpuFabricInfo_v3_t`; a driver that only knows v2 has no summary."""

    state: int
    status: int = 0
    """Meaningful only when the state is completed."""
    status_words: str = ""
    cluster_uuid: str = ""
    clique: int = 0
    health_mask: int = 0
    health_summary: int = 0


class Place(Struct, frozen=True):
    """Where in the rack somebody with a screwdriver finds the GPU."""

    chassis_serial: str
    slot: int
    tray: int

    def __str__(self) -> str:
        return f"chassis {self.chassis_serial or 'unknown'}, slot {self.slot}, tray {self.tray}"


class Gpu(Struct, frozen=True):
    index: int
    uuid: str = ""
    name: str = ""
    fabric: FabricInfo | None = None
    place: Place | None = None
    failure: Failure | None = None
    """Why there is no fabric info."""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.place})" if self.place else f"GPU {self.index}"


class Told(Struct, frozen=True, tag=True):
    """NVML answered."""

    driver_version: str
    gpus: tuple[Gpu, ...]


class Refused(Struct, frozen=True, tag=True):
    """NVML said that it can't answer: a call that all others need failed."""

    failure: Failure


class Silent(Struct, frozen=True, tag=True):
    """NVML said nothing."""

    why: str
    faulty: bool
    """The driver hung or crashed, as opposed to not being there."""


Answer = Told | Refused | Silent


class Kernel(Struct, frozen=True):
    """What the files of the running kernel say; None where a file is missing or says nothing."""

    pci_gpus: int | None = None
    channel_major: int | None = None
    channel_count: int | None = None
    imex_management: bool = False
    """The capability that an IMEX daemon needs to serve this driver."""
    boot_id: str = ""
    driver_version: str = ""
    """Of the loaded kernel module, which is there when NVML says nothing."""


class Report(Struct, frozen=True):
    answer: Answer
    kernel: Kernel = Kernel()
    isolation: Isolation = Isolation()
