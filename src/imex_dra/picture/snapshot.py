"""Builds the model of a picture from API objects, as a pure function.

A rack is an NVLink partition. A node whose partition is not known yet is grouped with nodes of similar names, so
that nodes do not move between racks while a cluster starts.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition
from imex_dra.api.views import Node, Pod, ResourceClaim, ResourceSlice
from imex_dra.picture.model import ClusterModel, Counts, Domain, DomainClaims, Rack, RackChannel, RackNode

PRODUCT_LABEL = "nvidia.com/gpu.product"
RACK_LABEL = "sandbox.imex-dra.io/rack"
"""Only simulated nodes have it."""
_POD_PHASES = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
_CLAIM_STATES = ("reserved", "allocated", "pending")


class Snapshot(Struct, frozen=True):
    """The API objects of a cluster at one moment."""

    nodes: Sequence[Node] = ()
    nvlink_nodes: Sequence[NVLinkNode] = ()
    partitions: Sequence[NVLinkPartition] = ()
    slices: Sequence[ResourceSlice] = ()
    claims: Sequence[ResourceClaim] = ()
    domains: Sequence[ComputeDomain] = ()
    pods: Sequence[Pod] = ()


def build_model(snapshot: Snapshot, letters: Mapping[str, str]) -> ClusterModel:
    """`letters` by the UID of the ComputeDomain; one without a letter is not shown."""
    nodes_by_rack = group_by_rack(snapshot)
    builder = _ModelBuilder(snapshot, letters)
    racks = tuple(builder.rack(name, nodes) for name, nodes in nodes_by_rack.items())
    return ClusterModel(racks, builder.domains(nodes_by_rack), _counts(snapshot))


def group_by_rack(snapshot: Snapshot) -> dict[str, list[Node]]:
    """The nodes of each rack. Racks and nodes are in natural order."""
    nodes = sorted(snapshot.nodes, key=lambda node: natural_order(node.metadata.name))
    partitions = {node.metadata.name: node.metadata.labels.get(CLIQUE_LABEL, "") for node in nodes}
    partitions |= {
        nvlink_node.metadata.name: nvlink_node.status.partition
        for nvlink_node in snapshot.nvlink_nodes
        if nvlink_node.status.partition
    }
    partitions_by_prefix: dict[str, set[str]] = {}
    for node in nodes:
        known = {partitions[node.metadata.name]} - {""}
        partitions_by_prefix.setdefault(_rack_prefix(node), set()).update(known)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        prefix = _rack_prefix(node)
        partition = partitions[node.metadata.name] or _single(partitions_by_prefix[prefix]) or prefix
        groups.setdefault(partition, []).append(node)
    return _with_rack_names(groups)


def _single(values: set[str]) -> str:
    """The only value; empty if there is none or more than one."""
    return next(iter(values)) if len(values) == 1 else ""


def _with_rack_names(groups: Mapping[str, list[Node]]) -> dict[str, list[Node]]:
    """Names a rack by the common prefix of its nodes, with the clique ID added where that is ambiguous."""
    prefixes = {
        partition: _single({_rack_prefix(node) for node in nodes}) or partition[:8]
        for partition, nodes in groups.items()
    }
    uses = Counter(prefixes.values())
    cliques = {partition: partition.rpartition(".")[2] for partition in groups}
    names = {
        partition: prefix if uses[prefix] == 1 else f"{prefix}.{cliques[partition]}"
        for partition, prefix in prefixes.items()
    }
    return {names[partition]: nodes for partition, nodes in groups.items()}


def _rack_prefix(node: Node) -> str:
    return node.metadata.labels.get(RACK_LABEL) or name_prefix(node.metadata.name)


def name_prefix(node: str) -> str:
    """The name without the number at its end: `r0` of `r0-n07`."""
    return re.sub(r"[-.]?[a-z]?\d+$", "", node) or node


def natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key that puts n2 before n10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


class _ModelBuilder:
    """Indexes of a snapshot."""

    def __init__(self, snapshot: Snapshot, letters: Mapping[str, str]) -> None:
        self._snapshot = snapshot
        self._letters = letters
        self._nvlink_nodes = {nvlink_node.metadata.name: nvlink_node for nvlink_node in snapshot.nvlink_nodes}
        self._partitions = {partition.metadata.name: partition for partition in snapshot.partitions}
        self._devices = Counter({one.spec.node_name: len(one.spec.devices) for one in snapshot.slices})
        self._running_pods = {key_of(pod) for pod in snapshot.pods if pod.status.phase == "Running"}
        self._claims: dict[tuple[str, str], list[ResourceClaim]] = {}
        """By node and by UID of the ComputeDomain."""
        for claim in snapshot.claims:
            for node_and_domain in itertools.product(claim.nodes, claim.domain_uids):
                self._claims.setdefault(node_and_domain, []).append(claim)

    def rack(self, name: str, nodes: Sequence[Node]) -> Rack:
        product = next((node.metadata.labels.get(PRODUCT_LABEL, "") for node in nodes), "")
        partition = self._partition(nodes)
        state = partition.status.summary.state.value if partition else ""
        return Rack(
            name, tuple(self._node(node) for node in nodes), product.removeprefix("NVIDIA").strip(" -"), state
        )

    def _partition(self, nodes: Iterable[Node]) -> NVLinkPartition | None:
        nvlink_nodes = filter(None, (self._nvlink_nodes.get(node.metadata.name) for node in nodes))
        names = (nvlink_node.status.partition for nvlink_node in nvlink_nodes)
        return next((self._partitions[name] for name in names if name in self._partitions), None)

    def _node(self, node: Node) -> RackNode:
        name = node.metadata.name
        nvlink_node = self._nvlink_nodes.get(name)
        return RackNode(
            name,
            is_ready(node),
            nvlink_node.status.imex_state.value if nvlink_node else "",
            nvlink_node.status.fabric.state.value if nvlink_node else "pending",
            self._devices[name],
            tuple(self._domain_claims(name)),
        )

    def _domain_claims(self, node: str) -> Iterable[DomainClaims]:
        for letter, uid in sorted((letter, uid) for uid, letter in self._letters.items()):
            if claims := self._claims.get((node, uid)):
                yield DomainClaims(letter, len(claims), prepared=any(map(self._is_prepared, claims)))

    def _is_prepared(self, claim: ResourceClaim) -> bool:
        # The kubelet starts a pod only after it prepared all claims of the pod.
        return any(Key(claim.metadata.namespace, pod) in self._running_pods for pod in claim.pods)

    def domains(self, nodes_by_rack: Mapping[str, Sequence[Node]]) -> tuple[Domain, ...]:
        rack_names = {
            partition.metadata.name: rack
            for rack, nodes in nodes_by_rack.items()
            if (partition := self._partition(nodes))
        }
        domains = (
            Domain(
                self._letters[domain.metadata.uid],
                domain.metadata.namespace,
                domain.metadata.name,
                domain.status.summary.status or domain.status.status.value,
                tuple(self._channels(domain.metadata.uid, rack_names)),
            )
            for domain in self._snapshot.domains
            if domain.metadata.uid in self._letters
        )
        return tuple(sorted(domains, key=lambda domain: domain.letter))

    def _channels(self, uid: str, rack_names: Mapping[str, str]) -> Iterable[RackChannel]:
        for partition in sorted(self._snapshot.partitions, key=lambda one: rack_names.get(one.metadata.name, "")):
            name = partition.metadata.name
            for one in partition.status.channels:
                if one.compute_domain.uid == uid and one.state is ChannelState.ASSIGNED:
                    yield RackChannel(rack_names.get(name, name[:8]), one.channel)


def _counts(snapshot: Snapshot) -> Counts:
    claims = Counter(_claim_state(claim) for claim in snapshot.claims)
    pods = Counter(pod.status.phase or "Unknown" for pod in snapshot.pods)
    return Counts(
        tuple((state, claims[state]) for state in _CLAIM_STATES if claims[state]),
        tuple((phase, pods[phase]) for phase in _POD_PHASES if pods[phase]),
    )


def _claim_state(claim: ResourceClaim) -> str:
    if claim.status.allocation is None:
        return "pending"
    return "reserved" if claim.status.reserved_for else "allocated"
