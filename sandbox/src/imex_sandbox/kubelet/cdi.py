"""CDI as a container runtime implements it: resolves device names to container edits.

Spec directories are given in ascending priority: a device in a later directory overrides the same device in an
earlier one. A device that is defined twice in one directory is not usable. The directories are read for each
container that has devices, without a cache: they are small, and a cache would have to watch them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import yaml
from msgspec import Struct

from imex_dra.base.errors import Rejected

log = structlog.get_logger()

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DeviceNode(Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""


class Mount(Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class ContainerEdits(Struct, frozen=True, rename="camel"):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Any, ...] = ()
    additional_gids: tuple[int, ...] = ()
    net_devices: tuple[Any, ...] = ()
    intel_rdt: Any = None

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        return ContainerEdits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
            self.additional_gids + other.additional_gids,
            self.net_devices + other.net_devices,
            self.intel_rdt or other.intel_rdt,
        )

    @property
    def unsupported(self) -> list[str]:
        """Edits that need privileges which a simulated node does not have."""
        edits = {
            "hooks": self.hooks,
            "additionalGids": self.additional_gids,
            "netDevices": self.net_devices,
            "intelRdt": self.intel_rdt,
        }
        return [name for name, value in edits.items() if value]


class Device(Struct, frozen=True, rename="camel"):
    name: str
    container_edits: ContainerEdits = ContainerEdits()


class Spec(Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()


NO_EDITS = ContainerEdits()


def resolve(directories: Sequence[Path], devices: Sequence[str]) -> ContainerEdits:
    """The edits of each spec once, followed by those of its devices.

    Raises Rejected, with the message of the real runtime, if a device is unknown.
    """
    if not devices:
        return NO_EDITS
    known: dict[str, tuple[Spec, Device]] = {}
    for directory in directories:
        known |= _unique_devices(_read_specs(directory))
    if unknown := [name for name in devices if name not in known]:
        raise Rejected(f"unresolvable CDI devices {', '.join(unknown)}")
    edits, used = NO_EDITS, set[int]()
    for name in devices:
        spec, device = known[name]
        if id(spec) not in used:
            used.add(id(spec))
            edits += spec.container_edits
        edits += device.container_edits
    if edits.unsupported:
        raise Rejected(
            f"{', '.join(devices)}: simulated nodes do not support the CDI edits {', '.join(edits.unsupported)}"
        )
    return edits


def _unique_devices(specs: Iterable[Spec]) -> dict[str, tuple[Spec, Device]]:
    found = [(f"{spec.kind}={device.name}", spec, device) for spec in specs for device in spec.devices]
    count = Counter(name for name, _, _ in found)
    return {name: (spec, device) for name, spec, device in found if count[name] == 1}


def _read_specs(directory: Path) -> Iterable[Spec]:
    for path in sorted(directory.glob("*")):
        if path.suffix in (".json", ".yaml") and not path.name.startswith("."):
            try:
                yield msgspec.convert(yaml.load(path.read_bytes(), _YAML), type=Spec, strict=False)
            except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
                log.warning("ignoring an invalid CDI spec", path=str(path), error=str(error))
