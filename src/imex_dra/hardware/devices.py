"""Device numbers of channels: the minor is the channel, the major is the kernel's choice at each load."""

from pathlib import Path

from imex_dra.api.names import CHANNEL_DEVICE_CLASS, channel_path
from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import DeviceNode

_EVERYBODY = 0o666
"""Non-root workloads must be able to write; who gets the node at all is what isolates."""


def channel_major(proc_devices: Path) -> int:
    try:
        text = proc_devices.read_text()
    except OSError as error:
        raise Misconfigured(f"{proc_devices} can't be read: {error.strerror}") from error
    characters = text.partition("Character devices:")[2].partition("Block devices:")[0]
    for line in characters.splitlines():
        major, _, name = line.strip().partition(" ")
        if name == CHANNEL_DEVICE_CLASS:
            return int(major)
    raise Misconfigured(f"{proc_devices} lists no {CHANNEL_DEVICE_CLASS}: the GPU driver is not loaded or too old")


def channel_node(major: int, channel: int) -> DeviceNode:
    return DeviceNode(
        path=channel_path(channel), type="c", major=major, minor=channel, file_mode=_EVERYBODY, permissions="rw"
    )
