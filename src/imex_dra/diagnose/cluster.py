"""A snapshot with indexes: which objects belong together.

The chain that everything here follows: a pod has claims; a claim is made from a template; the template belongs
to a ComputeDomain; an allocated claim is on a node; the node is a member of a partition, and runs an IMEX
daemon on a fabric. Objects that cannot be decoded are left out: they concern only themselves.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, Object, Resource, T, key_of
from imex_dra.api.names import CHANNEL_CLASS, CLIQUE_LABEL, DRIVER
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, ChannelState, Member, MemberState, NVLinkPartition
from imex_dra.api.views import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Node,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from imex_dra.base.errors import Undecodable
from imex_dra.diagnose.pods import ClusterPod, Owner
from imex_dra.diagnose.snapshot import JOBS, REPLICA_SETS, STATEFUL_SETS, Plain, Snapshot
from imex_dra.kube.decoding import ObjectDecoder
from imex_dra.lint.pods import Claim
from imex_dra.picture.snapshot import Snapshot as PictureSnapshot
from imex_dra.picture.snapshot import group_by_rack, is_ready, natural_order


@dataclass(frozen=True, eq=False)
class Cluster:
    snapshot: Snapshot
    memo: dict[str, Any] = field(default_factory=dict)
    """What rules have found."""

    def has(self, *plurals: str, namespace: str = "") -> bool:
        return all(self.snapshot.has(plural, namespace) for plural in plurals)

    # Objects

    @cached_property
    def pods(self) -> tuple[ClusterPod, ...]:
        """In natural order of their names."""
        pods = map(ClusterPod, self.snapshot.of(PODS.plural))
        return tuple(sorted(pods, key=lambda pod: (pod.namespace, natural_order(pod.name))))

    @cached_property
    def pods_by_key(self) -> dict[Key, ClusterPod]:
        return {pod.key: pod for pod in self.pods}

    @cached_property
    def claims(self) -> dict[Key, ResourceClaim]:
        return self._decoded(RESOURCE_CLAIMS)

    @cached_property
    def templates(self) -> dict[Key, ResourceClaimTemplate]:
        return self._decoded(RESOURCE_CLAIM_TEMPLATES)

    @cached_property
    def domains(self) -> dict[Key, ComputeDomain]:
        return self._decoded(COMPUTE_DOMAINS)

    @cached_property
    def domains_by_uid(self) -> dict[str, ComputeDomain]:
        return {domain.metadata.uid: domain for domain in self.domains.values()}

    @cached_property
    def partitions(self) -> dict[str, NVLinkPartition]:
        return {key.name: one for key, one in self._decoded(NVLINK_PARTITIONS).items()}

    @cached_property
    def nvlink_nodes(self) -> dict[str, NVLinkNode]:
        return {key.name: one for key, one in self._decoded(NVLINK_NODES).items()}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """In natural order."""
        found = {key.name: one for key, one in self._decoded(NODES).items()}
        return dict(sorted(found.items(), key=lambda item: natural_order(item[0])))

    @cached_property
    def plain_nodes(self) -> dict[str, Plain]:
        return {str(node["metadata"].get("name", "")): node for node in self.snapshot.of(NODES.plural)}

    @cached_property
    def slices(self) -> tuple[ResourceSlice, ...]:
        """Of our driver's name."""
        return tuple(one for one in self._decoded(RESOURCE_SLICES).values() if one.spec.driver == DRIVER)

    def _decoded(self, resource: Resource[T]) -> dict[Key, T]:
        decoder = ObjectDecoder(resource)
        found = {}
        for plain in self.snapshot.of(resource.plural):
            try:
                obj = decoder.decode(msgspec.json.encode(plain))
            except Undecodable:
                continue
            found[key_of(obj)] = obj
        return found

    # Nodes

    @cached_property
    def devices(self) -> dict[str, int]:
        """Channel devices that each node publishes."""
        return {one.spec.node_name: len(one.spec.devices) for one in self.slices}

    @cached_property
    def claims_on(self) -> dict[str, list[ResourceClaim]]:
        """Allocated claims by node."""
        found: defaultdict[str, list[ResourceClaim]] = defaultdict(list)
        for claim in self.claims.values():
            for node in claim.nodes:
                found[node].append(claim)
        return found

    @cached_property
    def members(self) -> dict[str, tuple[NVLinkPartition, Member]]:
        """By node; without those that leave."""
        return {
            member.node: (partition, member)
            for partition in self.partitions.values()
            for member in partition.status.members
            if member.state is not MemberState.LEAVING
        }

    def partition_of(self, node: str) -> str:
        """Name of its partition; empty if it is not known, or there is none."""
        report = self.nvlink_nodes.get(node)
        label = self.nodes[node].metadata.labels.get(CLIQUE_LABEL, "") if node in self.nodes else ""
        return (report.status.partition if report else "") or label

    @cached_property
    def fabric_nodes(self) -> dict[str, list[str]]:
        """Nodes by partition, in natural order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for node in sorted({*self.nodes, *self.nvlink_nodes}, key=natural_order):
            if partition := self.partition_of(node):
                found[partition].append(node)
        return dict(found)

    def is_free(self, node: str) -> bool:
        """Whether a new pod with a channel can start on the node, and no other one is there."""
        return self.serves(node) and not self.claims_on.get(node)

    def serves(self, node: str) -> bool:
        """Ready, schedulable, and publishes channel devices."""
        cordoned = self.plain_nodes.get(node, {}).get("spec", {}).get("unschedulable", False)
        return node in self.nodes and is_ready(self.nodes[node]) and not cordoned and bool(self.devices.get(node))

    @cached_property
    def pods_on(self) -> dict[str, list[ClusterPod]]:
        """Pods that have not ended, by node."""
        found: defaultdict[str, list[ClusterPod]] = defaultdict(list)
        for pod in self.pods:
            if pod.node and not pod.ended:
                found[pod.node].append(pod)
        return found

    # The chain

    @cached_property
    def _domains_by_template(self) -> dict[Key, ComputeDomain]:
        return {Key(key.namespace, domain.template_name): domain for key, domain in self.domains.items()}

    def domain_of_template(self, namespace: str, template: str) -> ComputeDomain | None:
        return self._domains_by_template.get(Key(namespace, template))

    def claim_of(self, pod: ClusterPod, claim: Claim) -> ResourceClaim | None:
        return self.claims.get(Key(pod.namespace, pod.claim_name(claim)))

    def is_channel(self, pod: ClusterPod, claim: Claim) -> bool:
        made = self.claim_of(pod, claim)
        if made is not None:
            return is_channel_claim(made)
        name = claim.template.text
        if template := self.templates.get(Key(pod.namespace, name)):
            return any(
                request.exactly is not None and request.exactly.device_class_name == CHANNEL_CLASS
                for request in template.spec.spec.devices.requests or ()
            )
        return self.domain_of_template(pod.namespace, name) is not None or claim.looks_like_channel

    def channel_claims(self, pod: ClusterPod) -> list[Claim]:
        return self._channel_claims[pod.key]

    @cached_property
    def _channel_claims(self) -> dict[Key, list[Claim]]:
        return {pod.key: [claim for claim in pod.claims if self.is_channel(pod, claim)] for pod in self.pods}

    @cached_property
    def claiming(self) -> tuple[ClusterPod, ...]:
        """Pods that claim a channel and have not ended."""
        return tuple(pod for pod in self.pods if not pod.ended and self.channel_claims(pod))

    def domain_of(self, pod: ClusterPod, claim: Claim) -> ComputeDomain | None:
        if made := self.claim_of(pod, claim):
            for uid in domain_uids(made):
                return self.domains_by_uid.get(uid)
        return self.domain_of_template(pod.namespace, claim.template.text)

    @cached_property
    def pods_of_domain(self) -> dict[str, list[ClusterPod]]:
        """Pods that claim, by UID of the ComputeDomain."""
        found: defaultdict[str, list[ClusterPod]] = defaultdict(list)
        for pod in self.claiming:
            for domain in {d.metadata.uid for c in self.channel_claims(pod) if (d := self.domain_of(pod, c))}:
                found[domain].append(pod)
        return found

    def channel(self, partition: str, domain: ComputeDomain) -> int | None:
        found = self.partitions.get(partition)
        for entry in found.status.channels if found else ():
            if entry.compute_domain.uid == domain.metadata.uid and entry.state is ChannelState.ASSIGNED:
                return entry.channel
        return None

    # Workloads

    @cached_property
    def _owners(self) -> dict[Owner, Owner]:
        """What created each Job, ReplicaSet, StatefulSet and Pod; the workers of a LeaderWorkerSet belong to the
        pod of their leader."""
        found = {}
        for resource in (JOBS, REPLICA_SETS, STATEFUL_SETS, PODS):
            for plain in self.snapshot.of(resource.plural):
                made = ClusterPod(plain)
                if made.controller:
                    found[Owner(resource.kind, made.namespace, made.name)] = made.controller
        return found

    def workload(self, pod: ClusterPod) -> Owner:
        """What a user created: the MPIJob of a launcher's Job, or the pod itself."""
        return self.owners(pod)[-1] if self.owners(pod) else Owner("Pod", pod.namespace, pod.name)

    def owners(self, pod: ClusterPod) -> list[Owner]:
        """What created the pod, what created that, and so on, as far as it was read or the pod's labels say."""
        found: list[Owner] = []
        owner = pod.controller
        while owner and owner not in found:
            found.append(owner)
            owner = self._owners.get(owner)
        labeled = pod.labeled_workload
        return [one for one in found if one != labeled] + [labeled] if labeled else found

    def events(self, kind: str, namespace: str, name: str, uid: str = "") -> list[Plain]:
        """Events about an object, the newest last."""
        found = self._events.get((kind, namespace, name), [])
        return [event for event in found if not uid or _regarding(event).get("uid", uid) == uid]

    @cached_property
    def _events(self) -> dict[tuple[str, str, str], list[Plain]]:
        found: defaultdict[tuple[str, str, str], list[Plain]] = defaultdict(list)
        for event in sorted(self.snapshot.of("events"), key=event_time):
            about = _regarding(event)
            found[about.get("kind", ""), about.get("namespace", ""), about.get("name", "")].append(event)
        return found

    # Pictures

    @cached_property
    def picture(self) -> PictureSnapshot:
        pods: dict[Key, Pod] = self._decoded(PODS)
        return PictureSnapshot(
            nodes=tuple(self.nodes.values()),
            nvlink_nodes=tuple(self.nvlink_nodes.values()),
            partitions=tuple(self.partitions.values()),
            slices=self.slices,
            claims=tuple(claim for claim in self.claims.values() if is_channel_claim(claim)),
            domains=tuple(self.domains.values()),
            pods=tuple(pods[pod.key] for pod in self.pods if pod.key in pods and self.channel_claims(pod)),
        )

    @cached_property
    def rack_names(self) -> dict[str, str]:
        """What people call a partition: the common prefix of its nodes."""
        racks = group_by_rack(self.picture)
        names = {self.partition_of(node.metadata.name): rack for rack, nodes in racks.items() for node in nodes}
        return {partition: name for partition, name in names.items() if partition}

    def rack(self, partition: str) -> str:
        return self.rack_names.get(partition, partition)


def is_channel_claim(claim: ResourceClaim) -> bool:
    classes = (
        request.exactly.device_class_name for request in claim.spec.devices.requests or () if request.exactly
    )
    return bool(claim.results) or CHANNEL_CLASS in classes or bool(domain_uids(claim))


def domain_uids(claim: ResourceClaim) -> set[str]:
    return claim.domain_uids or claim.waits_for_domain_uids


def event_time(event: Plain) -> str:
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
    )
    return next((time for time in times if time), "")


def event_text(event: Plain) -> str:
    return str(event.get("note") or event.get("message") or "")


def _regarding(event: Plain) -> dict[str, Any]:
    return event.get("regarding") or event.get("involvedObject") or {}


def name_of(obj: Object) -> str:
    return str(key_of(obj))
