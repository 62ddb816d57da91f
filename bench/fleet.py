"""The objects of a large cluster at rest, without machines: racks whose nodes are members, and ComputeDomains
whose claims are prepared. Pure.

What nodes, the scheduler and the partition reconciler have written is there. What the ComputeDomain reconciler
writes (finalizers, templates, status) is not, so that a controller that starts has it to do.
"""

import uuid
from typing import NamedTuple

import msgspec

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainSpec
from imex_dra.api.meta import AnnotatedMeta, Condition, ObjectMeta, OwnerReference
from imex_dra.api.names import (
    CHANNEL_CLASS,
    CHANNEL_REQUEST,
    CLIQUE_LABEL,
    DRIVER,
    PARTITION_FINALIZER,
    PartitionId,
    name_format,
)
from imex_dra.api.nvlinknode import (
    READY,
    Fabric,
    FabricState,
    HeldChannel,
    ImexState,
    NVLinkNode,
    NVLinkNodeStatus,
)
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.api.opaque import ComputeDomainChannelConfig
from imex_dra.api.views import (
    Allocation,
    AllocationResult,
    ClaimConsumer,
    ClaimDevices,
    ClaimSpec,
    ClaimStatus,
    DeviceAllocation,
    DeviceConfig,
    DeviceRequest,
    ExactRequest,
    Namespace,
    Node,
    NodeCondition,
    NodeStatus,
    OpaqueConfig,
    ResourceClaim,
)

RACK = 18
PODS = 4
"""Nodes of each ComputeDomain, with one pod on each."""

NAMESPACES = 50
MAX_NODES = 24
EPOCH = 2
_SINCE = "2026-01-01T00:00:00Z"


class Fleet(NamedTuple):
    namespaces: tuple[Namespace, ...]
    nodes: tuple[Node, ...]
    nvlink_nodes: tuple[NVLinkNode, ...]
    partitions: tuple[NVLinkPartition, ...]
    domains: tuple[ComputeDomain, ...]
    claims: tuple[ResourceClaim, ...]


def fleet(racks: int, domains: int, *, released: int = 0) -> Fleet:
    """`released`: channels of each rack that are released. They cannot be reused, because the last node of each
    rack has not acknowledged the epoch.
    """
    owned = [_domain(number) for number in range(domains)]
    claims = {domain.metadata.uid: _claims(domain, number, racks) for number, domain in enumerate(owned)}
    on_rack = [owned[rack::racks] for rack in range(racks)]
    return Fleet(
        tuple(Namespace(ObjectMeta(name=f"team-{n}", uid=_uid("namespace", n))) for n in range(NAMESPACES)),
        tuple(_node(rack, index) for rack in range(racks) for index in range(RACK)),
        tuple(
            _nvlink_node(rack, index, on_rack[rack], claims, lags=bool(released) and index == RACK - 1)
            for rack in range(racks)
            for index in range(RACK)
        ),
        tuple(_partition(rack, on_rack[rack], released) for rack in range(racks)),
        tuple(owned),
        tuple(claim for found in claims.values() for claim in found),
    )


def node_name(rack: int, index: int) -> str:
    return f"r{rack:03}-n{index:02}"


def partition_name(rack: int) -> PartitionId:
    return PartitionId(f"{_uid('rack', rack)}.1")


def _uid(*words: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(map(str, words))))


def _address(rack: int, index: int) -> str:
    return f"10.{rack // 256}.{rack % 256}.{index + 1}"


def _domain(number: int) -> ComputeDomain:
    meta = AnnotatedMeta(
        name=f"job-{number:05}", namespace=f"team-{number % NAMESPACES}", uid=_uid("domain", number), generation=1
    )
    return ComputeDomain(meta, ComputeDomainSpec())


def _claims(domain: ComputeDomain, number: int, racks: int) -> list[ResourceClaim]:
    rack, position = number % racks, number // racks
    return [_claim(domain, node_name(rack, (position * PODS + pod) % RACK), pod) for pod in range(PODS)]


def _claim(domain: ComputeDomain, node: str, pod: int) -> ResourceClaim:
    meta, name = domain.metadata, f"{domain.metadata.name}-{pod}"
    opaque = OpaqueConfig(DRIVER, ComputeDomainChannelConfig(domain_id=meta.uid).to_parameters())
    config = DeviceConfig((CHANNEL_REQUEST,), opaque)
    request = DeviceRequest(CHANNEL_REQUEST, ExactRequest(CHANNEL_CLASS))
    result = AllocationResult(CHANNEL_REQUEST, DRIVER, node, f"channel-{pod}")
    allocation = DeviceAllocation((result,), (msgspec.structs.replace(config, source="FromClaim"),))
    owner = OwnerReference("v1", "Pod", name, _uid("pod", name), controller=True)
    return ResourceClaim(
        ObjectMeta(
            name=f"{name}-imex", namespace=meta.namespace, uid=_uid("claim", name), owner_references=(owner,)
        ),
        ClaimSpec(ClaimDevices((request,), (config,))),
        ClaimStatus(Allocation(allocation), (ClaimConsumer("pods", name, _uid("pod", name)),)),
    )


def _node(rack: int, index: int) -> Node:
    name = node_name(rack, index)
    labels = {CLIQUE_LABEL: partition_name(rack), "kubernetes.io/hostname": name}
    meta = ObjectMeta(name=name, uid=_uid("node", name), labels=labels)
    return Node(meta, NodeStatus((NodeCondition("Ready", "True"),)))


def _nvlink_node(
    rack: int, index: int, domains: list[ComputeDomain], claims: dict[str, list[ResourceClaim]], *, lags: bool
) -> NVLinkNode:
    name, partition = node_name(rack, index), partition_name(rack)
    prepared: list[str] = []
    held: list[HeldChannel] = []
    for channel, domain in enumerate(domains, start=1):
        here = [claim.metadata.uid for claim in claims[domain.metadata.uid] if name in claim.nodes]
        prepared += here
        held += [HeldChannel(partition, channel, domain.metadata.uid)] if here else []
    status = NVLinkNodeStatus(
        fabric=Fabric(FabricState.OK),
        partition=partition,
        address=_address(rack, index),
        index=index,
        imex_state=ImexState.READY,
        driver_version="580.65.06",
        channel_count=2048,
        max_claims=16,
        boot_id=_uid("boot", name),
        imex_partition=partition,
        applied_generation=1,
        acknowledged_epoch=EPOCH - lags,
        held_channels=tuple(held),
        prepared_claims=tuple(prepared),
        conditions=(Condition(READY, "True", "NodeReady", _SINCE, "the node can serve claims"),),
    )
    return NVLinkNode(ObjectMeta(name=name, uid=_uid("nvlinknode", name), generation=1), status)


def _partition(rack: int, domains: list[ComputeDomain], released: int) -> NVLinkPartition:
    name = partition_name(rack)
    channels = [_assigned(channel, domain) for channel, domain in enumerate(domains, start=1)]
    channels += [_released(rack, channel) for channel in range(len(domains) + 1, len(domains) + 1 + released)]
    members = [
        Member(node_name(rack, index), index, _address(rack, index), MemberState.READY, since=_SINCE)
        for index in range(RACK)
    ]
    meta = AnnotatedMeta(name=name, uid=_uid("partition", rack), generation=1, finalizers=(PARTITION_FINALIZER,))
    return NVLinkPartition(
        meta,
        NVLinkPartitionSpec(MAX_NODES, name_format(name)),
        NVLinkPartitionStatus(
            generation=1, members=tuple(members), epoch=EPOCH, last_channel=len(channels), channels=tuple(channels)
        ),
    )


def _assigned(channel: int, domain: ComputeDomain) -> ChannelAssignment:
    meta = domain.metadata
    reference = DomainReference(meta.namespace, meta.name, meta.uid)
    return ChannelAssignment(channel, ChannelState.ASSIGNED, reference, _SINCE, assigned_epoch=1)


def _released(rack: int, channel: int) -> ChannelAssignment:
    name = f"gone-{rack}-{channel}"
    return ChannelAssignment(
        channel,
        ChannelState.RELEASED,
        DomainReference(f"team-{rack % NAMESPACES}", name, _uid("domain", name)),
        _SINCE,
        released_at=_SINCE,
        released_epoch=1,
        assigned_epoch=1,
    )
