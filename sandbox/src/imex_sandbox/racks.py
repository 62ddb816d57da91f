"""The description of a cluster as a list of racks, and the nodes that follow from it. Pure.

UUIDs derive from the names in the file, addresses from the number of the cluster on this machine. So the same file
always gives the same UUIDs, and clusters with different names and numbers share neither UUIDs nor addresses.
"""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from imex_dra.api.names import PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured
from imex_sandbox.embedded.placement import is_in_range, quantity
from imex_sandbox.profiles import DEFAULT_CLIQUE, PROFILES, Profile
from imex_sandbox.simulated import HardwareFile, SimulatedGpu

MAX_CLUSTERS = 240
MAX_RACKS = 256
MAX_NODES = 245
"""Per rack. The three limits follow from the addresses: 127.<16+cluster>.<rack>.<node+10>."""

Seconds = Annotated[float, Meta(ge=0)]

_CONTROL_PLANE = "control-plane"
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sandbox.imex-dra.io")
_NO_FABRIC = Fabric(FabricState.NONE, "NVLink connects the GPUs inside the node only")


class Taint(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""

    def __str__(self) -> str:
        """As `kubectl taint` takes it."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Rack(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    profile: str
    nodes: int | None = None
    """Default: the profile's."""
    partitions: tuple[int, ...] = ()
    """The number of nodes in each NVLink partition, in order. Default: the whole rack is one partition."""
    driver_version: str = ""
    labels: dict[str, str] = {}
    """Of every node, in addition to those of the sandbox."""
    taints: tuple[Taint, ...] = ()
    resources: dict[str, int | str] = {}
    """Extended resources of every node, such as `rdma/ib: 8`, which a device plugin would advertise."""


class Driver(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Flags of `imex controller` and `imex node`, in seconds. None: the program's default."""

    suspend_after: Seconds | None = None
    publish_after: Seconds | None = None
    prepare_deadline: Seconds | None = None

    @property
    def controller_options(self) -> dict[str, float]:
        return _given(suspend_after=self.suspend_after)

    @property
    def node_options(self) -> dict[str, Any]:
        return _given(publish_after=self.publish_after, prepare_deadline=self.prepare_deadline)


class Cluster(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["Cluster"]
    racks: tuple[Rack, ...]
    name: str = "imex"
    driver: Driver = Driver()
    control_plane_node: bool = False
    """Whether there is also a node without GPUs that has the label and the taint of control-plane nodes."""


class SimulatedNode(Struct, frozen=True):
    name: str
    rack: str
    address: str
    profile: Profile
    hardware: HardwareFile
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    resources: dict[str, int | str] = {}


def _given(**options: float | None) -> dict[str, float]:
    return {name: value for name, value in options.items() if value is not None}


def load(path: Path) -> Cluster:
    try:
        cluster = msgspec.yaml.decode(path.read_bytes(), type=Cluster)
        check(cluster)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, Misconfigured) as error:
        raise Misconfigured(f"{path} is not a valid cluster file: {error}") from error
    return cluster


def of_racks(count: int, profile: str, *, name: str = "imex") -> Cluster:
    """Equal racks with the names r0, r1, ..."""
    racks = tuple(Rack(f"r{number}", profile) for number in range(count))
    cluster = Cluster("sandbox.imex-dra.io/v1", "Cluster", racks, name)
    check(cluster)
    return cluster


def named(cluster: Cluster, name: str | None) -> Cluster:
    """The same cluster, with another name if one is given."""
    renamed = msgspec.structs.replace(cluster, name=name) if name else cluster
    check(renamed)
    return renamed


def check(cluster: Cluster) -> None:
    """Check what types cannot express. Errors name the JSON path, as msgspec's do."""
    _check_name(cluster.name, "$.name")
    _expect(0 < len(cluster.racks) <= MAX_RACKS, "$.racks", f"a cluster has 1 to {MAX_RACKS} racks")
    names = [rack.name for rack in cluster.racks]
    for number, rack in enumerate(cluster.racks):
        path = f"$.racks[{number}]"
        _check_name(rack.name, f"{path}.name")
        _expect(rack.name not in names[:number], f"{path}.name", f"there are two racks named {rack.name}")
        _expect(
            rack.profile in PROFILES,
            f"{path}.profile",
            f"unknown profile {rack.profile!r}: choose one of {', '.join(PROFILES)}",
        )
        _expect(0 < _size(rack) <= MAX_NODES, f"{path}.nodes", f"a rack has 1 to {MAX_NODES} nodes")
        _check_partitions(rack, f"{path}.partitions")
        for resource, amount in rack.resources.items():
            valid = "/" in resource and not resource.startswith("kubernetes.io/")
            _expect(valid, f"{path}.resources", f"{resource!r} is no extended resource, such as rdma/ib")
            valid = _is_whole(str(amount))
            _expect(valid, f"{path}.resources", f"{amount!r} of {resource} is no whole number, such as 4 or 1k")


def _is_whole(amount: str) -> bool:
    """Kubernetes has no parts of extended resources."""
    try:
        found = quantity(amount)
    except ValueError:
        return False
    return is_in_range(found) and found >= 0 and found == found.to_integral_value()


def _check_name(name: str, path: str) -> None:
    valid = _DNS_LABEL.fullmatch(name) is not None
    _expect(valid, path, f"{name!r} is not a lower-case DNS label of at most 40 characters")


def _check_partitions(rack: Rack, path: str) -> None:
    if not rack.partitions:
        return
    _expect(
        PROFILES[rack.profile].multi_node,
        path,
        f"profile {rack.profile} has no NVLink between nodes, so its racks have no partitions",
    )
    _expect(min(rack.partitions) > 0, path, "a partition has at least one node")
    total, size = sum(rack.partitions), _size(rack)
    _expect(total == size, path, f"the partitions have {total} nodes, but the rack has {size}")


def layout(cluster: Cluster, number: int = 0) -> tuple[SimulatedNode, ...]:
    """`number` distinguishes clusters that run on this machine at the same time."""
    _expect(0 <= number < MAX_CLUSTERS, "number", f"a machine can run {MAX_CLUSTERS} clusters")
    return tuple(
        node
        for index, rack in enumerate(cluster.racks)
        for node in _nodes(cluster.name, rack, f"127.{16 + number}.{index}")
    )


def partitions_of(cluster: str, rack: Rack) -> tuple[PartitionId, ...]:
    """The partition of each node, in order. The ids are empty if NVLink does not connect the nodes."""
    if not PROFILES[rack.profile].multi_node:
        return (PartitionId(""),) * _size(rack)
    domain = str(_uuid(cluster, rack.name))
    if not rack.partitions:
        return (partition_id(domain, DEFAULT_CLIQUE),) * _size(rack)
    cliques = enumerate(rack.partitions, start=1)
    return tuple(partition_id(domain, clique) for clique, nodes in cliques for _ in range(nodes))


def _nodes(cluster: str, rack: Rack, network: str) -> Iterator[SimulatedNode]:
    profile = PROFILES[rack.profile]
    for index, partition in enumerate(partitions_of(cluster, rack)):
        name = f"{rack.name}-n{index:02}"
        hardware = HardwareFile(
            fabric=Fabric(FabricState.OK) if partition else _NO_FABRIC,
            partition=partition,
            driver_version=rack.driver_version or profile.driver_version,
            boot_id=str(_uuid(cluster, name, "boot")),
            profile=profile.name,
            gpus=tuple(_gpus(cluster, rack, index)),
        )
        address, given = f"{network}.{index + 10}", (rack.labels, rack.taints, rack.resources)
        yield SimulatedNode(name, rack.name, address, profile, hardware, *given)


def control_plane_node(cluster: Cluster, number: int = 0) -> SimulatedNode | None:
    """It is in no rack, and the driver does not run on it."""
    if not cluster.control_plane_node:
        return None
    role = "node-role.kubernetes.io/control-plane"
    hardware = HardwareFile(boot_id=str(_uuid(cluster.name, _CONTROL_PLANE, "boot")))
    profile = Profile(_CONTROL_PLANE, "", nodes=1, gpus=0, driver_version="", multi_node=False)
    # Nodes of racks have addresses from .10 on.
    address, taints = f"127.{16 + number}.0.9", (Taint(role, "NoSchedule"),)
    return SimulatedNode(_CONTROL_PLANE, "", address, profile, hardware, {role: ""}, taints)


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


def _expect(valid: bool, path: str, message: str) -> None:
    if not valid:
        raise Misconfigured(f"{message} - at `{path}`")
