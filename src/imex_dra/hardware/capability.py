"""The device node of the capability fabric-imex-mgmt, without which the driver gives nvidia-imex no session.

The driver says in /proc/driver/nvidia/capabilities/fabric-imex-mgmt which minor and mode the node must have, but
does not create it. nvidia-modprobe can, but it does not run on every node, and after a reload of the driver the
major of `nvidia-caps` may be another one. So `imex node` creates /dev/nvidia-caps/nvidia-cap<minor> on the host,
and corrects a wrong one. If it cannot, the reason says what an administrator has to do.
"""

import os
from pathlib import Path

from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.channelnodes import is_node, make_node
from imex_dra.hardware.host import device_major, driver_param

CAPABILITY_FILE = "/proc/driver/nvidia/capabilities/fabric-imex-mgmt"
_DIRECTORY = "/dev/nvidia-caps"
_DEVICE_CLASS = "nvidia-caps"


class CapabilityNode(Struct, frozen=True):
    """The node as it must be."""

    major: int
    minor: int
    mode: int
    may_be_changed: bool
    """False if the driver was loaded with NVreg_ModifyDeviceFiles=0: device files are the administrator's."""

    @property
    def path(self) -> str:
        return f"{_DIRECTORY}/nvidia-cap{self.minor}"

    @property
    def command(self) -> str:
        """By which an administrator creates it."""
        return f"mknod -m {self.mode:04o} {self.path} c {self.major} {self.minor}"


def ensure_capability_node(root: Path) -> str:
    """Creates or corrects the node. Returns why nvidia-imex cannot use it, or nothing. `root` is where the host's
    root directory is mounted.
    """
    try:
        node = required_node(
            (root / CAPABILITY_FILE[1:]).read_text(), device_major(root / "proc/devices", _DEVICE_CLASS)
        )
    except FileNotFoundError:
        return _missing()
    except OSError as error:
        return f"{CAPABILITY_FILE} cannot be read: {error.strerror}; check the GPU driver"
    except Misconfigured as error:
        return str(error)
    path, device = root / node.path[1:], os.makedev(node.major, node.minor)
    if is_node(path, device, node.mode):
        return ""
    if not node.may_be_changed:
        return _not_allowed(node)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        make_node(path, device, node.mode)
    except OSError as error:
        return _refused(node, error)
    return ""


def required_node(capability: str, major: int) -> CapabilityNode:
    """From the content of the capability file. Misconfigured if a number is missing."""
    minor, mode = driver_param(capability, "DeviceFileMinor"), driver_param(capability, "DeviceFileMode")
    if minor is None or mode is None:
        raise Misconfigured(
            f"{CAPABILITY_FILE} has no DeviceFileMinor or no DeviceFileMode: the GPU driver is of an unknown"
            " version; install one that NVIDIA supports for IMEX"
        )
    return CapabilityNode(major, minor, mode & 0o777, driver_param(capability, "DeviceFileModify") != 0)


def _missing() -> str:
    return (
        f"the GPU driver has no fabric-imex-mgmt capability ({CAPABILITY_FILE} does not exist), so nvidia-imex"
        " cannot start: update the driver, and check that NVreg_ImexChannelCount is not 0"
    )


def _not_allowed(node: CapabilityNode) -> str:
    return (
        f"{node.path} is missing or wrong, so nvidia-imex cannot start, and the GPU driver was loaded with"
        f" NVreg_ModifyDeviceFiles=0, so imex node does not create it: run {node.command}"
    )


def _refused(node: CapabilityNode, error: OSError) -> str:
    return (
        f"{node.path} is missing or wrong, so nvidia-imex cannot start, and imex node may not create it"
        f" ({error.strerror}): run imex node as root with CAP_MKNOD and the host's /dev mounted writable,"
        f" or run {node.command}"
    )
