"""What the kernel tells about GPUs and channels without asking NVML: small files under /proc and /sys."""

from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.devices import channel_major
from imex_dra.hardware.report import Kernel

_NVIDIA = 0x10DE
_DISPLAY = 0x03
"""PCI base class of GPUs, with and without a screen; NVSwitches are bridges (0x06)."""

_PARAMETERS = "proc/driver/nvidia/params"
_MANAGEMENT = "proc/driver/nvidia/capabilities/fabric-imex-mgmt"


def read_kernel(root: Path) -> Kernel:
    return Kernel(
        pci_gpus=_pci_gpus(root / "sys/bus/pci/devices"),
        channel_major=_major(root / "proc/devices"),
        channel_count=_parameter(_text(root / _PARAMETERS), "ImexChannelCount"),
        imex_management=bool(_text(root / _MANAGEMENT)),
        boot_id=_text(root / "proc/sys/kernel/random/boot_id").strip(),
        driver_version=_text(root / "sys/module/nvidia/version").strip(),
    )


def _pci_gpus(devices: Path) -> int | None:
    try:
        return sum(_is_gpu(device) for device in devices.iterdir())
    except OSError:
        return None


def _is_gpu(device: Path) -> bool:
    """A virtual function is a share of a GPU that is counted already."""
    if _number(_text(device / "vendor")) != _NVIDIA or (device / "physfn").exists():
        return False
    return _number(_text(device / "class")) >> 16 == _DISPLAY


def _major(proc_devices: Path) -> int | None:
    try:
        return channel_major(proc_devices)
    except Misconfigured:
        return None


def _parameter(parameters: str, name: str) -> int | None:
    for line in parameters.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name and value.strip().isdecimal():
            return int(value)
    return None


def _number(text: str) -> int:
    try:
        return int(text.strip(), 16)
    except ValueError:
        return -1


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
