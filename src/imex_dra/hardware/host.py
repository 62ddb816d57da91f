"""The host's file system: what the kernel reports under /proc and /sys, and symbolic links under a mounted root.

`imex node` runs in a container with the host's root directory mounted at `root`. Nothing here calls NVML.
"""

from pathlib import Path, PurePosixPath

from imex_dra.api.names import CHANNEL_DEVICE_CLASS
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.report import KernelInfo

_NVIDIA_VENDOR = 0x10DE
_DISPLAY_CLASS = 0x03
"""PCI base class of GPUs, with and without a display. NVSwitches are bridges (0x06)."""

_DRIVER_PARAMS = "proc/driver/nvidia/params"

_MAX_SYMLINKS = 40
"""The limit of the Linux kernel."""


def read_kernel(root: Path) -> KernelInfo:
    return KernelInfo(
        pci_gpus=_pci_gpus(root / "sys/bus/pci/devices"),
        channel_major=_channel_major_or_none(root / "proc/devices"),
        channel_count=driver_param(read_text(root / _DRIVER_PARAMS), "ImexChannelCount"),
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id").strip(),
        driver_version=read_text(root / "sys/module/nvidia/version").strip(),
    )


def channel_major(proc_devices: Path) -> int:
    return device_major(proc_devices, CHANNEL_DEVICE_CLASS)


def device_major(proc_devices: Path, device_class: str) -> int:
    """The kernel chooses another one at each load of the driver."""
    try:
        text = proc_devices.read_text()
    except OSError as error:
        raise Misconfigured(f"{proc_devices} cannot be read: {error.strerror}") from error
    character_devices = text.partition("Character devices:")[2].partition("Block devices:")[0]
    for line in character_devices.splitlines():
        major, _, name = line.strip().partition(" ")
        if name == device_class:
            return int(major)
    raise Misconfigured(
        f"{proc_devices} has no {device_class}: the GPU driver is not loaded, or too old for IMEX channels"
    )


def resolve_in_root(root: Path, path: str) -> Path:
    """Follows symbolic links as the host itself would; never leaves `root`. The result need not exist.

    Absolute links are common on hosts (/var/run, /etc/alternatives, driver directories). Without this, they would
    lead to files of our own container.
    """
    resolved, remaining, links = root, list(_parts(path)), 0
    while remaining:
        part = remaining.pop(0)
        if part == "..":
            resolved = resolved if resolved == root else resolved.parent
        elif links < _MAX_SYMLINKS and (resolved / part).is_symlink():
            links += 1
            target = (resolved / part).readlink()
            resolved = root if target.is_absolute() else resolved
            remaining = [*_parts(str(target)), *remaining]
        else:
            resolved = resolved / part
    return resolved


def read_text(path: Path) -> str:
    """The file's content; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _parts(path: str) -> tuple[str, ...]:
    return PurePosixPath(path.lstrip("/")).parts


def _pci_gpus(devices: Path) -> int | None:
    try:
        return sum(_is_gpu(device) for device in devices.iterdir())
    except OSError:
        return None


def _is_gpu(device: Path) -> bool:
    # A virtual function (it has a `physfn` link) is a share of a GPU that is counted already.
    if _hex(read_text(device / "vendor")) != _NVIDIA_VENDOR or (device / "physfn").exists():
        return False
    return _hex(read_text(device / "class")) >> 16 == _DISPLAY_CLASS


def _channel_major_or_none(proc_devices: Path) -> int | None:
    try:
        return channel_major(proc_devices)
    except Misconfigured:
        return None


def driver_param(params: str, name: str) -> int | None:
    """A number in a file of the driver in /proc: lines of the form `name: number`."""
    for line in params.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name and value.strip().isdecimal():
            return int(value)
    return None


def _hex(text: str) -> int:
    try:
        return int(text.strip(), 16)
    except ValueError:
        return -1
