"""A cluster as a list of racks, and what each of its nodes is: name, address, hardware. Pure.

Everything follows from the names in the file and the cluster's number on this machine: the same file gives the
same UUIDs and addresses again, and clusters with names and numbers of their own share none.
"""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from imex_dra.api.names import PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.profiles import DEFAULT_CLIQUE, PROFILES, Profile
from imex_dra.hardware.simulated import HardwareFile, SimulatedGpu

MAX_CLUSTERS = 240
MAX_RACKS = 256
MAX_NODES = 245
"""A rack's; the three are what 127.<16+cluster>.<rack>.<node+10> has room for."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sandbox.imex-dra.io")
_INSIDE_ONLY = Fabric(FabricState.NONE, "its GPUs have NVLink inside the node only")


class Rack(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    profile: str
    nodes: int | None = None
    """Fewer or more than the profile's."""
    partitions: tuple[int, ...] = ()
    """How many nodes are in each, in order; without it the whole rack is one."""
    driver_version: str = ""


class Cluster(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["Cluster"]
    racks: tuple[Rack, ...]
    name: str = "imex"


class SimulatedNode(Struct, frozen=True):
    name: str
    rack: str
    address: str
    profile: Profile
    hardware: HardwareFile


def load(path: Path) -> Cluster:
    try:
        cluster = msgspec.yaml.decode(path.read_bytes(), type=Cluster)
        check(cluster)
    except OSError as error:
        raise Misconfigured(f"{path} can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, Misconfigured) as error:
        raise Misconfigured(f"{path} does not describe a cluster: {error}") from error
    return cluster


def of_racks(count: int, profile: str, *, name: str = "imex") -> Cluster:
    """The short form: as many equal racks as asked for, r0, r1 and so on."""
    racks = tuple(Rack(f"r{number}", profile) for number in range(count))
    cluster = Cluster("sandbox.imex-dra.io/v1", "Cluster", racks, name)
    check(cluster)
    return cluster


def named(cluster: Cluster, name: str | None) -> Cluster:
    """Under another name than its own, if one is given."""
    renamed = msgspec.structs.replace(cluster, name=name) if name else cluster
    check(renamed)
    return renamed


def check(cluster: Cluster) -> None:
    """What types can't say; an error names the place as a JSON path, as a wrong type would."""
    _expect(
        _DNS_LABEL.fullmatch(cluster.name) is not None, "$.name", f"{cluster.name!r} is no lower-case DNS label"
    )
    _expect(0 < len(cluster.racks) <= MAX_RACKS, "$.racks", f"a cluster has 1 to {MAX_RACKS} racks")
    names = [rack.name for rack in cluster.racks]
    for number, rack in enumerate(cluster.racks):
        place = f"$.racks[{number}]"
        valid = _DNS_LABEL.fullmatch(rack.name) is not None
        _expect(valid, f"{place}.name", f"{rack.name!r} is no lower-case DNS label of at most 40 characters")
        _expect(rack.name not in names[:number], f"{place}.name", f"there is a rack {rack.name} already")
        _expect(
            rack.profile in PROFILES, f"{place}.profile", f"no {rack.profile!r}; there are {', '.join(PROFILES)}"
        )
        _expect(0 < _size(rack) <= MAX_NODES, f"{place}.nodes", f"a rack has 1 to {MAX_NODES} nodes")
        _check_partitions(rack, f"{place}.partitions")


def _check_partitions(rack: Rack, place: str) -> None:
    if not rack.partitions:
        return
    _expect(PROFILES[rack.profile].multi_node, place, f"a rack of {rack.profile} has no partitions")
    _expect(min(rack.partitions) > 0, place, "a partition has at least one node")
    total, size = sum(rack.partitions), _size(rack)
    _expect(total == size, place, f"they have {total} nodes together, but the rack has {size}")


def layout(cluster: Cluster, number: int = 0) -> tuple[SimulatedNode, ...]:
    """`number` tells clusters apart that run on one machine at the same time."""
    _expect(0 <= number < MAX_CLUSTERS, "number", f"at most {MAX_CLUSTERS} clusters fit on one machine")
    return tuple(
        node
        for index, rack in enumerate(cluster.racks)
        for node in _nodes(cluster.name, rack, f"127.{16 + number}.{index}")
    )


def partitions_of(cluster: str, rack: Rack) -> tuple[PartitionId, ...]:
    """The partition of each node, in order; empty ids where NVLink does not leave the node."""
    if not PROFILES[rack.profile].multi_node:
        return (PartitionId(""),) * _size(rack)
    domain = str(_uuid(cluster, rack.name))
    if not rack.partitions:
        return (partition_id(domain, DEFAULT_CLIQUE),) * _size(rack)
    cut = enumerate(rack.partitions, start=1)
    return tuple(partition_id(domain, clique) for clique, nodes in cut for _ in range(nodes))


def _nodes(cluster: str, rack: Rack, network: str) -> Iterator[SimulatedNode]:
    profile = PROFILES[rack.profile]
    for index, partition in enumerate(partitions_of(cluster, rack)):
        name = f"{rack.name}-n{index:02}"
        hardware = HardwareFile(
            fabric=Fabric(FabricState.OK) if partition else _INSIDE_ONLY,
            partition=partition,
            driver_version=rack.driver_version or profile.driver_version,
            boot_id=str(_uuid(cluster, name, "boot")),
            profile=profile.name,
            gpus=tuple(_gpus(cluster, rack, index)),
        )
        yield SimulatedNode(name, rack.name, f"{network}.{index + 10}", profile, hardware)


def _gpus(cluster: str, rack: Rack, node: int) -> Iterator[SimulatedGpu]:
    profile = PROFILES[rack.profile]
    chassis, tray = divmod(node, -(-_size(rack) // profile.chassis))
    serial = f"SIM{_uuid(cluster, rack.name, 'chassis', str(chassis)).hex[:10].upper()}"
    for index in range(profile.gpus):
        name = f"GPU-{_uuid(cluster, rack.name, str(node), 'gpu', str(index))}"
        yield SimulatedGpu(name, profile.product, serial, slot=tray + 1, tray=tray)


def _size(rack: Rack) -> int:
    return PROFILES[rack.profile].nodes if rack.nodes is None else rack.nodes


def _uuid(*path: str) -> uuid.UUID:
    return uuid.uuid5(_NAMESPACE, "/".join(path))


def _expect(fine: bool, place: str, words: str) -> None:
    if not fine:
        raise Misconfigured(f"{words} - at `{place}`")
