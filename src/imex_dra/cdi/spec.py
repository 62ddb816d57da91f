"""CDI specs, with the fields that we use. A spec has one device per claim."""

import msgspec
from msgspec import Struct, field

from imex_dra.api.names import CDI_CLASS, CDI_VENDOR

VERSION = "0.6.0"
"""The oldest version with device names that start with a digit (0.5.0) and annotations (0.6.0)."""

KIND = f"{CDI_VENDOR}/{CDI_CLASS}"


class DeviceNode(Struct, frozen=True, omit_defaults=True, rename="camel"):
    path: str
    major: int
    minor: int = 0
    type: str = field(name="type", default="")
    file_mode: int = 0
    permissions: str = ""


class Mount(Struct, frozen=True, omit_defaults=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class ContainerEdits(Struct, frozen=True, omit_defaults=True, rename="camel"):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        return ContainerEdits(
            self.env + other.env, self.device_nodes + other.device_nodes, self.mounts + other.mounts
        )


class Device(Struct, frozen=True, rename="camel"):
    name: str
    container_edits: ContainerEdits


class Spec(Struct, frozen=True, omit_defaults=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    annotations: dict[str, str] = {}

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def device_id(claim_uid: str) -> str:
    """The qualified device name that the kubelet passes to the container runtime."""
    return f"{KIND}={claim_uid}"
