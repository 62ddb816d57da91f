"""CDI as a container runtime does it: device names in, edits of the container out.

Directories come in rising priority. A device that a higher directory defines hides the lower ones; defined twice
in one directory it is nobody's. The directories are read anew for every container that has devices: they are
small, and a cache would need to be told of changes.
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


class DeviceNode(Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""


class Mount(Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Edits(Struct, frozen=True, rename="camel"):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Any, ...] = ()
    additional_gids: tuple[int, ...] = ()
    net_devices: tuple[Any, ...] = ()
    intel_rdt: Any = None

    def __add__(self, other: "Edits") -> "Edits":
        return Edits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
            self.additional_gids + other.additional_gids,
            self.net_devices + other.net_devices,
            self.intel_rdt or other.intel_rdt,
        )

    @property
    def impossible(self) -> list[str]:
        """Kinds of edits that a container without a runtime's rights can't have."""
        asked = {
            "hooks": self.hooks,
            "additionalGids": self.additional_gids,
            "netDevices": self.net_devices,
            "intelRdt": self.intel_rdt,
        }
        return [kind for kind, edits in asked.items() if edits]


class Device(Struct, frozen=True, rename="camel"):
    name: str
    container_edits: Edits = Edits()


class Spec(Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: Edits = Edits()


NO_EDITS = Edits()


def resolve(directories: Sequence[Path], devices: Sequence[str]) -> Edits:
    """Edits of each spec that is used once, then those of its devices; Rejected with the runtime's words."""
    if not devices:
        return NO_EDITS
    known: dict[str, tuple[Spec, Device]] = {}
    for directory in directories:
        known |= _devices(_specs(directory))
    if unknown := [name for name in devices if name not in known]:
        raise Rejected(f"unresolvable CDI devices {', '.join(unknown)}")
    edits, used = NO_EDITS, set[int]()
    for name in devices:
        spec, device = known[name]
        if id(spec) not in used:
            used.add(id(spec))
            edits += spec.container_edits
        edits += device.container_edits
    if edits.impossible:
        kinds = ", ".join(edits.impossible)
        raise Rejected(f"{', '.join(devices)}: simulated nodes can't make edits of the kind {kinds}")
    return edits


def _devices(specs: Iterable[Spec]) -> dict[str, tuple[Spec, Device]]:
    found = [(f"{spec.kind}={device.name}", spec, device) for spec in specs for device in spec.devices]
    times = Counter(name for name, _, _ in found)
    return {name: (spec, device) for name, spec, device in found if times[name] == 1}


def _specs(directory: Path) -> Iterable[Spec]:
    for path in sorted(directory.glob("*")):
        if path.suffix in (".json", ".yaml") and not path.name.startswith("."):
            try:
                yield msgspec.convert(yaml.load(path.read_bytes(), _YAML), type=Spec, strict=False)
            except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
                log.warning("a CDI spec can't be read and is ignored", path=str(path), error=str(error))


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
