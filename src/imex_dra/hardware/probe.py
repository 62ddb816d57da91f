"""Asks NVML, in a process of its own that lives for one answer.

`python -m imex_dra.hardware.probe LIBRARY SECONDS` prints a `report.Answer` as JSON. It is killed from outside
when it hangs, and kills itself when whoever started it is gone.
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

from imex_dra.hardware.report import Answer, FabricInfo, Failure, Gpu, Place, Refused, Told

T = TypeVar("T")

_SUCCESS = 0
_OTHER_VERSION = 25
"""NVML_ERROR_ARGUMENT_VERSION_MISMATCH: the driver does not know the struct's version."""


class CallFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure


def ask(library: str) -> Answer:
    try:
        _load(library)
        _call(pynvml.nvmlInit)
        version = _call(pynvml.nvmlSystemGetDriverVersion)
        count = _call(pynvml.nvmlDeviceGetCount)
    except CallFailed as failed:
        return Refused(failed.failure)
    return Told(version, tuple(_gpu(index) for index in range(count)))


def _load(library: str) -> None:
    """The loader then finds this one by its soname, whatever pynvml asks for and wherever the driver's root is."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise CallFailed(Failure("dlopen", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, str(error))) from error


def _call(function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise CallFailed(Failure(function.__name__, error.value, str(error))) from error


def _gpu(index: int) -> Gpu:
    gpu = Gpu(index)
    try:
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
        gpu = Gpu(
            index,
            uuid=_optional(pynvml.nvmlDeviceGetUUID, handle),
            name=_optional(pynvml.nvmlDeviceGetName, handle),
            place=_place(handle),
        )
        return structs.replace(gpu, fabric=_fabric(handle))
    except CallFailed as failed:
        return structs.replace(gpu, failure=failed.failure)


def _optional(function: Callable[[Any], str], handle: Any) -> str:
    try:
        return _call(function, handle)
    except CallFailed:
        return ""


def _fabric(handle: Any) -> FabricInfo:
    try:
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        _call(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    except CallFailed as failed:
        if failed.failure.code != _OTHER_VERSION:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        _call(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    return FabricInfo(
        state=info.state,
        status=info.status,
        status_words="" if info.status == _SUCCESS else str(pynvml.NVMLError(info.status)),
        cluster_uuid=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        health_mask=info.healthMask,
        health_summary=getattr(info, "healthSummary", 0),
    )


def _place(handle: Any) -> Place | None:
    """Read byte by byte: pynvml declares the numbers as characters, and takes them for text."""
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    try:
        _call(pynvml.nvmlDeviceGetPlatformInfo, handle, ctypes.byref(info))
    except CallFailed:
        return None
    raw, fields = bytes(info), type(info)
    serial = raw[fields.chassisSerialNumber.offset :][: fields.chassisSerialNumber.size]
    return Place(
        serial.partition(b"\0")[0].decode(errors="replace"),
        slot=raw[fields.slotNumber.offset],
        tray=raw[fields.trayIndex.offset],
    )


def main() -> None:
    library, seconds = sys.argv[1:]
    signal.alarm(math.ceil(float(seconds)) + 1)
    sys.stdout.buffer.write(msgspec.json.encode(ask(library)))


if __name__ == "__main__":
    main()
