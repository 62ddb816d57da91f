"""What the controller keeps of objects of which there is one for every node or pod. Pure.

The views of claims, Nodes and NVLinkNodes serve other programs too. In a cache of ten thousand nodes most of the
memory would be fields that no reconciler reads, such as the labels of Nodes, and thousands of copies of the same
names. A trimmed object has the same type, and answers every question of the controller as the whole one would.
None of these kinds is written back from its view (`kube.patch`).
"""

from functools import lru_cache
from sys import intern

import msgspec
from msgspec import Raw, structs

from imex_dra.api.meta import ObjectMeta, OwnerReference
from imex_dra.api.names import CLIQUE_LABEL, DRIVER
from imex_dra.api.nvlinknode import READY, HeldChannel, HostNodeList, NVLinkNode
from imex_dra.api.views import (
    Allocation,
    AllocationResult,
    ClaimConsumer,
    ClaimDevices,
    ClaimSpec,
    ClaimStatus,
    DeviceAllocation,
    DeviceConfig,
    Node,
    NodeStatus,
    OpaqueConfig,
    ResourceClaim,
)

_NO_LABELS: dict[str, str] = {}
_NO_SPEC = ClaimSpec()


def trimmed_claim(claim: ResourceClaim) -> ResourceClaim:
    """Only the nodes, ComputeDomains and pods."""
    waits_for = claim.waits_for_domain_uids
    spec = ClaimSpec(ClaimDevices(None, _configs(waits_for))) if waits_for else _NO_SPEC
    allocation = None
    if claim.status.allocation is not None:
        results = tuple(AllocationResult("", DRIVER, intern(result.pool), "") for result in claim.results)
        allocation = Allocation(DeviceAllocation(results, _configs(claim.domain_uids)))
    pods = tuple(ClaimConsumer("pods", intern(pod), "") for pod in claim.pods)
    return ResourceClaim(_meta(claim.metadata), spec, ClaimStatus(allocation, pods))


def _meta(meta: ObjectMeta) -> ObjectMeta:
    owners = tuple(OwnerReference("", "Pod", intern(o.name), "") for o in meta.owner_references if o.kind == "Pod")
    return ObjectMeta(
        meta.name,
        intern(meta.namespace),
        meta.uid,
        meta.resource_version,
        deletion_timestamp=meta.deletion_timestamp,
        labels=_NO_LABELS,
        owner_references=owners,
    )


def _configs(uids: set[str]) -> tuple[DeviceConfig, ...]:
    return tuple(_config(uid) for uid in sorted(uids))


@lru_cache(maxsize=10_000)
def _config(uid: str) -> DeviceConfig:
    """The claims of a ComputeDomain share it."""
    return DeviceConfig((), OpaqueConfig(DRIVER, Raw(msgspec.json.encode({"domainID": uid}))))


def trimmed_node(node: Node) -> Node:
    """Only whether it is ready, and its clique."""
    clique = node.metadata.labels.get(CLIQUE_LABEL)
    labels = _NO_LABELS if clique is None else {CLIQUE_LABEL: intern(clique)}
    own = node.metadata
    meta = ObjectMeta(intern(own.name), own.namespace, own.uid, own.resource_version, labels=labels)
    ready = tuple(condition for condition in node.status.conditions if condition.type == "Ready")
    return Node(meta, NodeStatus(ready))


def trimmed_nvlink_node(report: NVLinkNode) -> NVLinkNode:
    """Without GPUs, without conditions other than Ready, and with shared names."""
    meta, status = report.metadata, report.status
    return NVLinkNode(
        ObjectMeta(intern(meta.name), meta.namespace, meta.uid, meta.resource_version, labels=_NO_LABELS),
        structs.replace(
            status,
            partition=intern(status.partition),
            imex_partition=intern(status.imex_partition),
            product=intern(status.product),
            gpus=(),
            host_node_list=_shared(status.host_node_list) if status.host_node_list else None,
            driver_version=intern(status.driver_version),
            held_channels=tuple(
                HeldChannel(intern(held.partition), held.channel, intern(held.compute_domain))
                for held in status.held_channels
            ),
            unreachable=tuple(map(intern, status.unreachable)),
            conditions=tuple(condition for condition in status.conditions if condition.type == READY),
        ),
    )


@lru_cache(maxsize=10_000)
def _shared(node_list: HostNodeList) -> HostNodeList:
    """The nodes of a machine have the same one."""
    return node_list
