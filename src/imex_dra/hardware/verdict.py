"""What a report means: the node's fabric, in one word and one sentence. Pure.

`none` is proven, never concluded from silence: NVML answered, it sees as many GPUs as PCI does, and each of them
says that it has no fabric. A node that hides its fabric would run pods without channels, and nobody would know
why they fail. A node without NVIDIA GPUs is `pending` for good: it offers nothing and alarms nobody.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from imex_dra.api.names import CHANNEL_DEVICE_CLASS, PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.hardware.health import Severity, diagnosis
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import Answer, FabricInfo, Failure, Gpu, Kernel, Refused, Report, Silent, Told


class Phase(IntEnum):
    """`NVML_GPU_FABRIC_STATE_*`."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


_NO_FABRIC = "00000000-0000-0000-0000-000000000000"
"""The cluster of GPUs whose NVLink ends at the node's own switches (HGX)."""

_UNSUPPORTED = "does not support a multi-node fabric"
_FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
_NOT_SUPPORTED = 3
_TOO_OLD = 13
_PASSING = {
    1: "NVML is not initialised",
    4: "NVML refuses us: imex node needs the rights to open the GPU devices",
    9: "the GPU driver is not loaded",
    12: "libnvidia-ml.so.1 of the GPU driver can't be loaded",
    18: "the GPU driver's library and kernel module differ in version: it is being updated, or needs a reboot",
    20: "NVML has not got enough memory",
    23: "NVML has not got enough resources",
    27: "the GPU is not ready",
}
"""`NVML_ERROR_*` that end when somebody installs or starts something; the others mean a defect."""


class Standing(NamedTuple):
    """One GPU's part in the fabric, or what they all come to."""

    state: FabricState
    words: str = ""
    partition: PartitionId = PartitionId("")

    @property
    def fabric(self) -> Fabric:
        return Fabric(self.state, self.words)


def reading(report: Report) -> Reading:
    standing = _standing(report.answer, report.kernel)
    return Reading(
        fabric=standing.fabric,
        partition=standing.partition,
        driver_version=_version(report),
        channel_count=report.kernel.channel_count or 0,
        boot_id=report.kernel.boot_id,
        isolation=report.isolation,
    )


def _version(report: Report) -> str:
    return report.answer.driver_version if isinstance(report.answer, Told) else report.kernel.driver_version


def _standing(answer: Answer, kernel: Kernel) -> Standing:
    match answer:
        case Told(gpus=gpus) if gpus:
            together = _together(gpus, kernel.pci_gpus)
            return _with_channels(together, kernel) if together.state is FabricState.OK else together
        case _ if kernel.pci_gpus == 0:
            return Standing(FabricState.PENDING, "no NVIDIA GPU is on the node's PCI bus")
        case Refused(failure):
            return _failed("NVML", failure)
        case Silent(why, faulty):
            return Standing(FabricState.BROKEN if faulty else FabricState.PENDING, why)
    return Standing(FabricState.PENDING, "NVML sees no GPU, though the PCI bus may have some")


def _together(gpus: Sequence[Gpu], pci_gpus: int | None) -> Standing:
    each = [standing_of(gpu) for gpu in gpus]
    for state in (FabricState.BROKEN, FabricState.PENDING):
        if affected := [one for one in each if one.state is state]:
            return Standing(state, _first_of_many([one.words for one in affected], len(gpus)))
    partitions = sorted({one.partition for one in each if one.state is FabricState.OK})
    if len(partitions) > 1:
        return Standing(
            FabricState.BROKEN, f"the node's GPUs are in different partitions: {', '.join(partitions)}"
        )
    if not partitions:
        return _proven(each, pci_gpus)
    if outside := [str(gpu) for gpu in gpus if _alone(gpu)]:
        return Standing(FabricState.BROKEN, f"{outside[0]} is in no cluster, but others are in {partitions[0]}")
    words = [one.words for one in each if one.state is FabricState.OK and one.words]
    return Standing(FabricState.OK, _first_of_many(words, len(gpus)), PartitionId(partitions[0]))


def standing_of(gpu: Gpu) -> Standing:
    if gpu.failure is not None:
        if (gpu.failure.call, gpu.failure.code) == (_FABRIC_CALL, _NOT_SUPPORTED):
            return Standing(FabricState.NONE, f"{gpu} {_UNSUPPORTED}")
        return _failed(str(gpu), gpu.failure)
    if gpu.fabric is None:
        return Standing(FabricState.PENDING, f"{gpu} says nothing about its fabric")
    match gpu.fabric.state:
        case Phase.NOT_SUPPORTED:
            return Standing(FabricState.NONE, f"{gpu} {_UNSUPPORTED}")
        case Phase.NOT_STARTED:
            return Standing(
                FabricState.PENDING, f"{gpu} has not started to join the fabric: see the fabric manager"
            )
        case Phase.IN_PROGRESS:
            return Standing(FabricState.PENDING, f"{gpu} is joining the fabric")
        case Phase.COMPLETED:
            return _joined(gpu, gpu.fabric)
    return Standing(FabricState.BROKEN, f"{gpu} is in fabric state {gpu.fabric.state}, which nobody knows")


def _joined(gpu: Gpu, info: FabricInfo) -> Standing:
    if info.status:
        return Standing(FabricState.BROKEN, f"{gpu} failed to join the fabric: {info.status_words or info.status}")
    if info.cluster_uuid == _NO_FABRIC:
        return Standing(FabricState.NONE, f"{gpu} has NVLink inside the node only (its cluster UUID is zero)")
    severity, words = diagnosis(info.health_mask, info.health_summary)
    state = {Severity.BREAKING: FabricState.BROKEN, Severity.RECOVERING: FabricState.PENDING}.get(severity)
    if state is not None:
        return Standing(state, f"{gpu} is unhealthy: {words}")
    limits = f"{gpu} is limited: {words}" if words else ""
    return Standing(FabricState.OK, limits, partition_id(info.cluster_uuid, info.clique))


def _proven(each: Sequence[Standing], pci_gpus: int | None) -> Standing:
    if pci_gpus == len(each):
        return Standing(FabricState.NONE, _first_of_many([one.words for one in each], len(each)))
    seen = f"NVML sees {len(each)} GPUs without a multi-node fabric"
    if pci_gpus is None:
        return Standing(
            FabricState.PENDING, f"{seen}, but the PCI bus can't be read to tell whether these are all"
        )
    return Standing(FabricState.PENDING, f"{seen}, but the PCI bus has {pci_gpus} NVIDIA GPUs")


def _with_channels(standing: Standing, kernel: Kernel) -> Standing:
    """A fabric without channels is of no use, and a count of 0 would exhaust the whole partition."""
    if kernel.channel_count == 0:
        return Standing(FabricState.BROKEN, "the GPU driver was loaded with NVreg_ImexChannelCount=0: no channels")
    if kernel.channel_count is None or kernel.channel_major is None:
        return Standing(
            FabricState.BROKEN, f"the GPU driver is too old for IMEX channels: it has no {CHANNEL_DEVICE_CLASS}"
        )
    if not kernel.imex_management:
        missing = "the GPU driver offers no fabric-imex-mgmt capability: the IMEX daemon may not start"
        return standing._replace(words="; ".join(filter(None, (standing.words, missing))))
    return standing


def _failed(who: str, failure: Failure) -> Standing:
    if failure.code == _TOO_OLD:
        return Standing(
            FabricState.PENDING, f"the GPU driver is too old to tell about the fabric: it has no {failure.call}"
        )
    if failure.code in _PASSING:
        return Standing(FabricState.PENDING, _PASSING[failure.code])
    return Standing(FabricState.BROKEN, f"{who} fails in {failure.call}: {failure.words} ({failure.code})")


def _alone(gpu: Gpu) -> bool:
    return gpu.fabric is not None and gpu.fabric.state == Phase.COMPLETED and gpu.fabric.cluster_uuid == _NO_FABRIC


def _first_of_many(words: Sequence[str], of: int) -> str:
    if not words:
        return ""
    return words[0] if len(words) == 1 else f"{words[0]} (and {len(words) - 1} more of {of})"
