"""Decides, from a report, the state of the node's fabric and the reason for it.

`none` must be proven: NVML answered, it lists as many GPUs as the PCI bus has, and each of them reports that it
has no multi-node fabric. A node that wrongly reported `none` would run pods without channels, with no hint why
they fail. A node without NVIDIA GPUs stays `pending`: it publishes no devices and raises no alarm.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from imex_dra.api.names import CHANNEL_DEVICE_CLASS, PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState, GpuFabric
from imex_dra.hardware.health import Severity, evaluate_health
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import (
    FabricInfo,
    FailedCall,
    Gpu,
    KernelInfo,
    NvmlAnswer,
    NvmlError,
    NvmlResult,
    NvmlUnavailable,
    Report,
)


class NvmlFabricState(IntEnum):
    """`NVML_GPU_FABRIC_STATE_*`."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


_ZERO_UUID = "00000000-0000-0000-0000-000000000000"
"""The cluster UUID of GPUs whose NVLink is confined to the node (HGX)."""

_NO_FABRIC = "does not support a multi-node NVLink fabric"
_FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_RECOVERABLE = {
    1: "NVML is not initialized",
    4: "NVML denies permission: imex node must be able to open the GPU devices",
    9: "the GPU driver is not loaded",
    12: "libnvidia-ml.so.1 of the GPU driver cannot be loaded",
    18: "the GPU driver's library and kernel module differ in version: finish the update, or reboot the node",
    20: "NVML is out of memory",
    23: "NVML is out of resources",
    27: "the GPU is not ready",
}
"""`NVML_ERROR_*` that end when a component is installed or started. All others mean a defect."""


class FabricVerdict(NamedTuple):
    """The fabric state of one GPU, or of all GPUs of the node."""

    state: FabricState
    reason: str = ""
    partition: PartitionId = PartitionId("")


def evaluate(report: Report) -> Reading:
    verdict = _node_verdict(report.nvml, report.kernel)
    return Reading(
        fabric=Fabric(verdict.state, verdict.reason),
        partition=verdict.partition,
        driver_version=_driver_version(report),
        product=_product(report.nvml),
        gpu_count=report.kernel.pci_gpus or 0,
        gpus=_gpus(report.nvml),
        channel_count=report.kernel.channel_count or 0,
        boot_id=report.kernel.boot_id,
        isolation=report.isolation,
        channel_major=report.kernel.channel_major or 0,
    )


def _driver_version(report: Report) -> str:
    return report.nvml.driver_version if isinstance(report.nvml, NvmlAnswer) else report.kernel.driver_version


def _product(nvml: NvmlResult) -> str:
    gpus = nvml.gpus if isinstance(nvml, NvmlAnswer) else ()
    return next((gpu.product for gpu in gpus if gpu.product), "")


def _gpus(nvml: NvmlResult) -> tuple[GpuFabric, ...]:
    if not isinstance(nvml, NvmlAnswer):
        return ()
    verdicts = ((gpu.index, _gpu_verdict(gpu)) for gpu in nvml.gpus)
    return tuple(GpuFabric(index, verdict.state, verdict.reason) for index, verdict in verdicts)


def _node_verdict(nvml: NvmlResult, kernel: KernelInfo) -> FabricVerdict:
    match nvml:
        case NvmlAnswer(gpus=gpus) if gpus:
            verdict = _combine(gpus, kernel.pci_gpus)
            return _require_channels(verdict, kernel) if verdict.state is FabricState.OK else verdict
        case _ if kernel.pci_gpus == 0:
            return FabricVerdict(FabricState.PENDING, "the node's PCI bus has no NVIDIA GPU")
        case NvmlError(failed_call):
            return _failed("NVML", failed_call)
        case NvmlUnavailable(reason, driver_fault):
            return FabricVerdict(FabricState.BROKEN if driver_fault else FabricState.PENDING, reason)
    return FabricVerdict(FabricState.PENDING, "NVML lists no GPU, although the PCI bus may have some")


def _combine(gpus: Sequence[Gpu], pci_gpus: int | None) -> FabricVerdict:
    verdicts = [_gpu_verdict(gpu) for gpu in gpus]
    for state in (FabricState.BROKEN, FabricState.PENDING):
        if affected := [verdict.reason for verdict in verdicts if verdict.state is state]:
            return FabricVerdict(state, _summarize(affected, len(gpus)))
    attached = [verdict for verdict in verdicts if verdict.state is FabricState.OK]
    partitions = sorted({verdict.partition for verdict in attached})
    if len(partitions) > 1:
        return FabricVerdict(
            FabricState.BROKEN, f"the node's GPUs are in different partitions: {', '.join(partitions)}"
        )
    if not partitions:
        return _prove_no_fabric(verdicts, pci_gpus)
    if outside := [str(gpu) for gpu in gpus if _has_zero_uuid(gpu)]:
        return FabricVerdict(
            FabricState.BROKEN, f"{outside[0]} has no cluster UUID, but other GPUs are in {partitions[0]}"
        )
    limits = _summarize([verdict.reason for verdict in attached if verdict.reason], len(gpus))
    missing = ""
    if pci_gpus is not None and pci_gpus > len(gpus):
        missing = f"NVML lists {len(gpus)} GPUs, but the PCI bus has {pci_gpus}: check the kernel log for Xid"
    return FabricVerdict(FabricState.OK, "; ".join(filter(None, (limits, missing))), PartitionId(partitions[0]))


def _gpu_verdict(gpu: Gpu) -> FabricVerdict:
    if gpu.failed_call is not None:
        if (gpu.failed_call.function, gpu.failed_call.code) == (_FABRIC_CALL, _NOT_SUPPORTED):
            return FabricVerdict(FabricState.NONE, f"{gpu} {_NO_FABRIC}")
        return _failed(str(gpu), gpu.failed_call)
    if gpu.fabric is None:
        return FabricVerdict(FabricState.PENDING, f"{gpu} reports no fabric information")
    match gpu.fabric.state:
        case NvmlFabricState.NOT_SUPPORTED:
            return FabricVerdict(FabricState.NONE, f"{gpu} {_NO_FABRIC}")
        case NvmlFabricState.NOT_STARTED:
            return FabricVerdict(
                FabricState.PENDING, f"{gpu} has not started to register with the fabric: check the fabric manager"
            )
        case NvmlFabricState.IN_PROGRESS:
            return FabricVerdict(FabricState.PENDING, f"{gpu} is registering with the fabric")
        case NvmlFabricState.COMPLETED:
            return _registered(gpu, gpu.fabric)
    return FabricVerdict(FabricState.BROKEN, f"{gpu} is in fabric state {gpu.fabric.state}, which is unknown")


def _registered(gpu: Gpu, info: FabricInfo) -> FabricVerdict:
    if info.status:
        cause = info.status_message or info.status
        return FabricVerdict(FabricState.BROKEN, f"{gpu} failed to register with the fabric: {cause}")
    if info.cluster_uuid == _ZERO_UUID:
        return FabricVerdict(FabricState.NONE, f"{gpu} has NVLink within the node only: its cluster UUID is zero")
    severity, message = evaluate_health(info.health_mask, info.health_summary)
    state = {Severity.BROKEN: FabricState.BROKEN, Severity.RECOVERING: FabricState.PENDING}.get(severity)
    if state is not None:
        return FabricVerdict(state, f"{gpu} is unhealthy: {message}")
    limits = f"{gpu} is limited: {message}" if message else ""
    return FabricVerdict(FabricState.OK, limits, partition_id(info.cluster_uuid, info.clique))


def _prove_no_fabric(verdicts: Sequence[FabricVerdict], pci_gpus: int | None) -> FabricVerdict:
    if pci_gpus == len(verdicts):
        return FabricVerdict(FabricState.NONE, _summarize([verdict.reason for verdict in verdicts], len(verdicts)))
    listed = f"NVML lists {len(verdicts)} GPUs without a multi-node NVLink fabric"
    if pci_gpus is None:
        return FabricVerdict(
            FabricState.PENDING, f"{listed}, but the PCI bus cannot be read to confirm that there are no others"
        )
    return FabricVerdict(FabricState.PENDING, f"{listed}, but the PCI bus has {pci_gpus} NVIDIA GPUs")


def _require_channels(verdict: FabricVerdict, kernel: KernelInfo) -> FabricVerdict:
    # Without channels the node cannot serve a claim, however healthy its fabric is.
    if kernel.channel_count == 0:
        return FabricVerdict(
            FabricState.BROKEN,
            "the GPU driver was loaded with NVreg_ImexChannelCount=0, which disables IMEX channels",
        )
    if kernel.channel_count == 1:
        return FabricVerdict(
            FabricState.BROKEN,
            "the GPU driver was loaded with NVreg_ImexChannelCount=1, and its only channel, 0, is never assigned:"
            " load it with more, as a rule 2048",
        )
    if kernel.channel_count is None or kernel.channel_major is None:
        return FabricVerdict(
            FabricState.BROKEN, f"the GPU driver is too old for IMEX channels: it has no {CHANNEL_DEVICE_CLASS}"
        )
    return verdict


def _failed(subject: str, failed: FailedCall) -> FabricVerdict:
    if failed.code == _FUNCTION_NOT_FOUND:
        return FabricVerdict(
            FabricState.PENDING, f"the GPU driver is too old to report its fabric: it has no {failed.function}"
        )
    if failed.code in _RECOVERABLE:
        return FabricVerdict(FabricState.PENDING, _RECOVERABLE[failed.code])
    return FabricVerdict(
        FabricState.BROKEN, f"{subject}: {failed.function} failed: {failed.message} (NVML error {failed.code})"
    )


def _has_zero_uuid(gpu: Gpu) -> bool:
    info = gpu.fabric
    return info is not None and info.state == NvmlFabricState.COMPLETED and info.cluster_uuid == _ZERO_UUID


def _summarize(reasons: Sequence[str], gpus: int) -> str:
    if not reasons:
        return ""
    return reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} more of {gpus} GPUs)"
