"""Calls NVML in a process of its own, once.

`python -m imex_dra.hardware.probe LIBRARY SECONDS` prints a `report.NvmlResult` as JSON. Its parent kills it
when it hangs; if the parent is gone, it ends itself by SIGALRM one second after the parent would have.
"""

import ctypes
import math
import signal
import sys
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml  # type: ignore[import-untyped]
from msgspec import structs

from imex_dra.hardware.report import (
    FabricInfo,
    FailedCall,
    Gpu,
    NvmlAnswer,
    NvmlError,
    NvmlResult,
    PlatformInfo,
)

T = TypeVar("T")


class CallError(Exception):
    def __init__(self, failed_call: FailedCall) -> None:
        super().__init__(failed_call.message)
        self.failed_call = failed_call


def query_nvml(library: str) -> NvmlResult:
    try:
        _load(library)
        _call(pynvml.nvmlInit)
        version = _call(pynvml.nvmlSystemGetDriverVersion)
        count = _call(pynvml.nvmlDeviceGetCount)
    except CallError as error:
        return NvmlError(error.failed_call)
    return NvmlAnswer(version, tuple(_gpu(index) for index in range(count)))


def _load(library: str) -> None:
    # pynvml loads libnvidia-ml.so.1 by name. The dynamic linker then returns this library, which has that soname,
    # instead of searching the container's own directories.
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise CallError(FailedCall("dlopen", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, str(error))) from error


def _call(function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise CallError(FailedCall(function.__name__, error.value, str(error))) from error


def _gpu(index: int) -> Gpu:
    gpu = Gpu(index)
    try:
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
        gpu = structs.replace(gpu, product=_product(handle), platform=_platform_info(handle))
        return structs.replace(gpu, fabric=_fabric_info(handle))
    except CallError as error:
        return structs.replace(gpu, failed_call=error.failed_call)


def _product(handle: Any) -> str:
    try:
        return str(_call(pynvml.nvmlDeviceGetName, handle))
    except CallError:
        return ""


def _fabric_info(handle: Any) -> FabricInfo:
    try:
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        _call(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    except CallError as error:
        if error.failed_call.code != pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        _call(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    return FabricInfo(
        state=info.state,
        status=info.status,
        status_message="" if info.status == pynvml.NVML_SUCCESS else str(pynvml.NVMLError(info.status)),
        cluster_uuid=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        health_mask=info.healthMask,
        health_summary=getattr(info, "healthSummary", 0),
    )


def _platform_info(handle: Any) -> PlatformInfo | None:
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    try:
        _call(pynvml.nvmlDeviceGetPlatformInfo, handle, ctypes.byref(info))
    except CallError:
        return None
    # pynvml declares the numbers as characters and would decode them as text; read the bytes instead.
    raw, fields = bytes(info), type(info)
    serial = raw[fields.chassisSerialNumber.offset :][: fields.chassisSerialNumber.size]
    return PlatformInfo(
        serial.partition(b"\0")[0].decode(errors="replace"),
        slot_number=raw[fields.slotNumber.offset],
        tray_index=raw[fields.trayIndex.offset],
    )


def main() -> None:
    library, seconds = sys.argv[1:]
    signal.alarm(math.ceil(float(seconds)) + 1)
    sys.stdout.buffer.write(msgspec.json.encode(query_nvml(library)))


if __name__ == "__main__":
    main()
