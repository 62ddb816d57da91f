"""What NVML and the kernel report about a node, before `verdict` interprets it.

A child process (`probe`) calls NVML and sends an NvmlResult back as JSON. A call into the driver can hang or
crash, and the process that serves the kubelet must survive both.
"""

from msgspec import Struct

from imex_dra.api.nvlinknode import Isolation


class FailedCall(Struct, frozen=True):
    """An NVML call that returned an error."""

    function: str
    code: int
    """The nvmlReturn_t."""
    message: str


class FabricInfo(Struct, frozen=True):
    """`nvmlGpuFabricInfo_v3_t`. A driver that supports v2 only has no summary."""

    state: int
    status: int = 0
    """An nvmlReturn_t; meaningful only when the state is COMPLETED."""
    status_message: str = ""
    cluster_uuid: str = ""
    clique: int = 0
    health_mask: int = 0
    health_summary: int = 0


class PlatformInfo(Struct, frozen=True):
    """`nvmlPlatformInfo_v2_t`: where the GPU is in the rack."""

    chassis_serial: str
    slot_number: int
    tray_index: int

    def __str__(self) -> str:
        return f"chassis {self.chassis_serial or 'unknown'}, slot {self.slot_number}, tray {self.tray_index}"


class Gpu(Struct, frozen=True):
    index: int
    product: str = ""
    fabric: FabricInfo | None = None
    platform: PlatformInfo | None = None
    failed_call: FailedCall | None = None
    """Why there is no fabric info."""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.platform})" if self.platform else f"GPU {self.index}"


class NvmlAnswer(Struct, frozen=True, tag=True):
    """NVML lists the GPUs. Calls about a single GPU may have failed."""

    driver_version: str
    gpus: tuple[Gpu, ...]


class NvmlError(Struct, frozen=True, tag=True):
    """NVML cannot list the GPUs: a call that all others depend on returned an error."""

    failed_call: FailedCall


class NvmlUnavailable(Struct, frozen=True, tag=True):
    """NVML did not answer."""

    reason: str
    driver_fault: bool
    """The driver hung or crashed, as opposed to being absent."""


NvmlResult = NvmlAnswer | NvmlError | NvmlUnavailable


class KernelInfo(Struct, frozen=True):
    """What /proc and /sys report. None means that the file is missing or does not contain the value."""

    pci_gpus: int | None = None
    channel_major: int | None = None
    channel_count: int | None = None
    boot_id: str = ""
    driver_version: str = ""
    """Of the loaded kernel module; known even when NVML is unavailable."""


class Report(Struct, frozen=True):
    nvml: NvmlResult
    kernel: KernelInfo = KernelInfo()
    isolation: Isolation = Isolation()
