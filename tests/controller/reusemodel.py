"""A model of a small cluster in which channels are assigned, released and reused.

Every decision is the product's own: the controller's inputs and plan, the node's decision about a grant, its
checkpoint on disk, its report, and what its nvidia-imex accepts as a member list. The model adds the surroundings:
an API server with versions, two controllers that may have seen outdated objects, up to two node programs on each
machine, prepares that commit late or never, processes and daemons, nodes that are cut off from the API server or
from each other, and time.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from msgspec import structs

from imex_dra.api.computedomain import (
    COMPUTE_DOMAINS,
    AllocationMode,
    ComputeDomain,
    ComputeDomainSpec,
    ComputeDomainStatus,
    DomainPartition,
)
from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta
from imex_dra.api.names import CLIQUE_LABEL, FORGET_ANNOTATION, PartitionId, name_format
from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import (
    ChannelState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.api.views import Node, NodeCondition, NodeStatus, ResourceClaim
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound, NotYet, Unavailable
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.controller.caches import Caches
from imex_dra.controller.forgetting import still_away
from imex_dra.controller.nvlinkpartitions import NVLinkPartitionReconciler
from imex_dra.controller.partitionplan import plan_partition
from imex_dra.controller.plausibility import Counters
from imex_dra.controller.releases import ReleaseCheck
from imex_dra.daemon.plan import supersedes
from imex_dra.daemon.state import DaemonState
from imex_dra.dra.plugin import ClaimId
from imex_dra.hardware.protocol import Reading
from imex_dra.imex.memberlist import Leave, MemberList
from imex_dra.kube.client import Client
from imex_dra.kube.events import EventRecorder
from imex_dra.node.apireads import LivePartition
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim
from imex_dra.node.claim import ChannelRequest
from imex_dra.node.grant import Grant, Snapshot
from imex_dra.node.prepare import decide, prepared_claim
from imex_dra.node.prepared import PreparedClaims
from imex_dra.node.report import Report, make_report
from imex_dra.node.state import member_list_for_daemon
from tests.controller.claims import claim, configuration

MAX_NODES = 4
NAMESPACE = "team"

LEADER = 2
"""Index of the leader's memory in `Model.known`."""

R = TypeVar("R")


def finish(work: Coroutine[Any, Any, R]) -> R:
    """The result of a coroutine that never waits: the model answers every request at once."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("R", done.value)
    raise AssertionError("the coroutine waits")


class NoDevices:
    """Hardware that is never read: the model makes the readings."""

    period = 1.0

    async def read(self) -> Reading:
        raise AssertionError("the model does not read hardware")

    def container_edits(self, claim_uid: str, channels: Sequence[int]) -> ContainerEdits:
        return ContainerEdits()

    def remove_devices(self, claim_uid: str) -> None:
        pass

    def claims_with_devices(self) -> set[str]:
        return set()


class Process(NamedTuple):
    channel: int
    domain: str


class UncommittedPrepare(NamedTuple):
    claim: PreparedClaim
    began: Checkpoint
    epoch: int


class UnwrittenReport(NamedTuple):
    report: Report
    version: int
    """Of the NVLinkNode that the report was based on."""


@dataclass
class NodeProgram:
    """One `imex node`: the partition as it watched it last, and what it has decided and not yet written."""

    watched: NVLinkPartition | None = None
    prepares: list[UncommittedPrepare] = field(default_factory=list)
    report: UnwrittenReport | None = None


@dataclass
class Machine:
    name: str
    root: Path
    partition_id: PartitionId
    channel_count: int
    boot: int = 1
    has_node: bool = True
    """Whether its Node object exists."""
    is_ready: bool = True
    """Whether its Node is Ready."""
    has_api: bool = True
    """Whether its programs reach the API server. Its processes and its daemon run on if they do not."""
    is_isolated: bool = False
    """Whether its daemon cannot reach others at the moment; their connections return with the network."""
    label: str = ""
    processes: dict[str, Process] = field(default_factory=dict)
    """By claim UID."""
    daemon: MemberList | None = None
    """The member list that the running IMEX daemon applied; None: it does not run."""
    files: MemberList | None = None
    """With which the supervisor starts the daemon again; a reboot empties its directory."""
    programs: list[NodeProgram] = field(default_factory=lambda: [NodeProgram()])
    nvlink_node: NVLinkNode | None = None
    version: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint.json"

    @property
    def prepared(self) -> PreparedClaims:
        return PreparedClaims(
            self.name, CheckpointFile(self.checkpoint), Directory(self.root / "cdi"), NoDevices()
        )

    def snapshot(self, program: NodeProgram) -> Snapshot:
        boot_id = f"boot-{self.boot}"
        reading = Reading(Fabric(FabricState.OK), self.partition_id, "580", self.channel_count, boot_id)
        daemon = DaemonState()
        if self.daemon:
            running = self.daemon
            daemon = DaemonState(ImexState.READY, running.partition, running.own_index, running.generation)
        return Snapshot(
            self.name,
            reading,
            daemon,
            self.partition_id,
            program.watched,
            address=self.address,
            is_publisher=program is self.programs[0],
        )

    def peers(self) -> frozenset[str]:
        """The addresses in the daemon's member list."""
        return frozenset(self.daemon.addresses.values()) if self.daemon else frozenset()

    @property
    def address(self) -> str:
        return f"10.0.0.{self.name}"


@dataclass
class View:
    """The objects that a controller has seen."""

    partitions: dict[PartitionId, NVLinkPartition | None]
    nvlink_nodes: dict[str, NVLinkNode]
    nodes: dict[str, Node]
    domains: dict[str, ComputeDomain]
    claims: frozenset[tuple[str, str]]


class LiveReads:
    """The API server as the controller's confirming reads see it: always current."""

    def __init__(self, model: "Model") -> None:
        self._model = model

    async def get(self, resource: object, key: Key) -> ComputeDomain:
        assert resource is COMPUTE_DOMAINS
        if key.name not in self._model.domains:
            raise NotFound(key.name)
        return self._model.domains[key.name]

    async def list(self, resource: object, selection: object = None) -> list[ResourceClaim]:
        return [claim_object(uid, node) for uid, node in self._model.claims]


class CurrentPartition(LivePartition):
    """The API server as a prepare's confirming read sees it."""

    def __init__(self, model: "Model", machine: Machine) -> None:
        self._model = model
        self._machine = machine

    async def prefetched(self) -> NVLinkPartition | None:
        return None

    def discard(self) -> None:
        pass

    async def fetch(self, name: str) -> NVLinkPartition | None:
        if not self._machine.has_api:
            raise Unavailable(name)
        return self._model.partitions[PartitionId(name)]


def claim_object(domain_uid: str, node: str) -> ResourceClaim:
    config = configuration(domain_uid)
    return claim(f"{domain_uid}-{node}", config, nodes=(node,), namespace=NAMESPACE)


class Model:
    def __init__(self, root: Path, nodes: dict[str, PartitionId], channel_count: int) -> None:
        names = sorted(set(nodes.values()))
        self.partitions: dict[PartitionId, NVLinkPartition | None] = dict.fromkeys(names)
        self.forgotten: dict[PartitionId, set[str]] = {name: set() for name in names}
        """What stands in the annotation of `imex forget-node`."""
        self.history: dict[PartitionId, list[NVLinkPartitionStatus]] = {name: [] for name in names}
        self.machines = {
            name: Machine(name, root / name, partition_id, channel_count) for name, partition_id in nodes.items()
        }
        self.domains: dict[str, ComputeDomain] = {}
        self.created: list[str] = []
        """The UIDs of all ComputeDomains that ever existed."""
        self.claims: set[tuple[str, str]] = set()
        """ComputeDomain UID and node."""
        self.views: list[View] = [self.current_view(), self.current_view()]
        """Of two controllers that do not know that they are no longer the leader."""
        self.known: list[dict[PartitionId, Counters]] = [{}, {}, {}]
        """What these two and the leader remember of their own writes."""
        self.count = 0
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    # Users

    def create_domain(self) -> str:
        self.count += 1
        uid = f"d{self.count}"
        self.created.append(uid)
        meta = AnnotatedMeta(name=uid, namespace=NAMESPACE, uid=uid, resource_version="1")
        self.domains[uid] = ComputeDomain(meta, ComputeDomainSpec())
        return uid

    def delete_domain(self, uid: str) -> None:
        """Its claims are gone with it; its processes are not."""
        self.domains.pop(uid, None)
        self.claims = {claim for claim in self.claims if claim[0] != uid}

    # Controllers

    def current_view(self) -> View:
        machines = [machine for machine in self.machines.values() if machine.has_node]
        return View(
            dict(self.partitions),
            {m.name: m.nvlink_node for m in machines if m.nvlink_node is not None},
            {m.name: _node(m) for m in machines},
            dict(self.domains),
            frozenset(self.claims),
        )

    def reconcile(self, view: View, name: PartitionId, controller: int = LEADER) -> None:
        """Writes only if the partition is still the one in the view, as the resourceVersion ensures."""
        before = view.partitions[name]
        if before is not self.partitions[name]:
            return
        if before is None:
            if not any(n.status.partition == name for n in view.nvlink_nodes.values()):
                return
            before = self._partition(name, NVLinkPartitionStatus())
        caches = _caches(view)
        if (away := still_away(caches, before)) != before.forgotten_nodes:
            self.forgotten[name] = away
            before = self.partitions[name] = self._partition(name, before.status)
        client = cast("Client", LiveReads(self))
        reconciler = NVLinkPartitionReconciler(client, caches, cast("EventRecorder", None), Clock())
        reconciler.known = self.known[controller]
        released = finish(ReleaseCheck(client, caches).released_domains(before))
        inputs = finish(reconciler.inputs(name, before, released))
        status = plan_partition(inputs, self.now).status
        self.known[controller][name] = Counters.of(status)
        if self.partitions[name] is None or before.status != status:
            self.put(name, status)
        view.partitions[name] = self.partitions[name]

    def forget_node(self, machine: Machine) -> None:
        """`imex forget-node`: deletes the last report, then annotates the partitions that list the node."""
        machine.nvlink_node, machine.version = None, machine.version + 1
        for name, partition in self.partitions.items():
            if partition is not None and machine.name in {member.node for member in partition.status.members}:
                self.forgotten[name].add(machine.name)
                self.partitions[name] = self._partition(name, partition.status)

    def put(self, name: PartitionId, status: NVLinkPartitionStatus) -> None:
        self.partitions[name] = self._partition(name, status)
        self.history[name].append(status)

    def _partition(self, name: PartitionId, status: NVLinkPartitionStatus) -> NVLinkPartition:
        annotations = {FORGET_ANNOTATION: ",".join(sorted(self.forgotten[name]))}
        meta = AnnotatedMeta(name=name, uid=name, resource_version="1", annotations=annotations)
        return NVLinkPartition(meta, NVLinkPartitionSpec(MAX_NODES, name_format(name)), status)

    def write_domain_status(self, uid: str) -> None:
        """The controller writes a ComputeDomain's status later than the partition's, maybe much later."""
        held = tuple(
            DomainPartition(name, entry.channel)
            for name, partition in self.partitions.items()
            for entry in (partition.status.channels if partition else ())
            if entry.compute_domain.uid == uid and entry.state is ChannelState.ASSIGNED
        )
        self.domains[uid] = structs.replace(self.domains[uid], status=ComputeDomainStatus(partitions=held))

    def label_nodes(self) -> None:
        for machine in self.machines.values():
            if machine.has_node and machine.nvlink_node is not None and machine.nvlink_node.status.partition:
                machine.label = machine.nvlink_node.status.partition

    def is_provably_old(self, name: PartitionId, status: NVLinkPartitionStatus) -> bool:
        machines = (m for m in self.machines.values() if m.nvlink_node and m.has_node)
        reports = (m.nvlink_node.status for m in machines if m.nvlink_node)
        return any(
            report.acknowledged_epoch > status.epoch or report.applied_generation > status.generation
            for report in reports
            if report.partition == name
        )

    # Node programs

    def watch(self, machine: Machine, program: NodeProgram) -> None:
        if machine.has_api:
            program.watched = self.partitions[machine.partition_id]

    def begin_prepare(self, machine: Machine, program: NodeProgram, uid: str) -> None:
        """The decision; a grant is committed later."""
        checkpoint = machine.prepared.read()
        self.count += 1
        name = f"claim-{self.count}"
        request = ChannelRequest(ClaimId(NAMESPACE, name, name), uid, uid, AllocationMode.SINGLE, ())
        snapshot = machine.snapshot(program)
        try:
            verdict = finish(decide(snapshot, request, checkpoint, CurrentPartition(self, machine)))
        except Unavailable:
            return
        if isinstance(verdict, Grant):
            claim = prepared_claim(request, verdict, snapshot)
            program.prepares.append(UncommittedPrepare(claim, checkpoint, verdict.epoch))

    def commit_prepare(self, machine: Machine, program: NodeProgram, which: int) -> None:
        claim, began, epoch = program.prepares.pop(which)
        try:
            machine.prepared.add(claim, began, epoch)
        except NotYet:
            return
        machine.processes[claim.uid] = Process(claim.channel, claim.domain_uid)

    def end_process(self, machine: Machine, claim_uid: str) -> None:
        """The process ends, then the kubelet unprepares the claim."""
        del machine.processes[claim_uid]
        machine.prepared.remove(claim_uid)

    def begin_report(self, machine: Machine, program: NodeProgram) -> None:
        last = machine.nvlink_node.status if machine.nvlink_node else NVLinkNodeStatus()
        report = make_report(machine.prepared, machine.snapshot(program), last, self.now)
        program.report = UnwrittenReport(report, machine.version)

    def write_report(self, machine: Machine, program: NodeProgram) -> None:
        """Only if the NVLinkNode is still the one that was read."""
        unwritten, program.report = program.report, None
        if unwritten is None or not machine.has_node or not machine.has_api:
            return
        if unwritten.version == machine.version:
            machine.version += 1
            meta = ObjectMeta(name=machine.name, uid=machine.name, resource_version="1")
            status = structs.replace(unwritten.report.status, unreachable=self.unreachable(machine))
            machine.nvlink_node = NVLinkNode(meta, status)

    # IMEX daemons

    def send_member_list(self, machine: Machine, program: NodeProgram) -> None:
        machine.daemon = machine.daemon or machine.files
        snapshot, files = machine.snapshot(program), machine.files
        desired = member_list_for_daemon(snapshot) if snapshot.is_publisher else None
        if isinstance(desired, Leave):
            machine.daemon = machine.files = None
        elif desired and (files is None or supersedes(desired, files.partition, files.generation)):
            machine.daemon = machine.files = desired

    def unreachable(self, machine: Machine) -> tuple[str, ...]:
        """Members in the list of the machine's daemon that it does not reach now."""
        others = [other for other in self.machines.values() if other.address in machine.peers()]
        cut = {other.name for other in others if machine.is_isolated or other.is_isolated} - {machine.name}
        return tuple(sorted(cut | {other.name for other in others if not self.connected(machine, other)}))

    def connected(self, one: Machine, other: Machine) -> bool:
        """Each has the other in its member list, in the same partition. A broken network may be repaired at any
        time, so it separates no nodes.
        """
        if one is other:
            return True
        if one.daemon is None or other.daemon is None or one.daemon.partition != other.daemon.partition:
            return False
        return other.address in one.peers() and one.address in other.peers()

    def leaks(self) -> list[str]:
        """Pairs of processes of different ComputeDomains that can import each other's memory."""
        running = [(m, process) for m in self.machines.values() for process in m.processes.values()]
        return [
            f"{one.name} and {other.name} share channel {first.channel}: {first.domain} and {second.domain}"
            for one, first in running
            for other, second in running
            if first.channel == second.channel and first.domain < second.domain and self.connected(one, other)
        ]


def _node(machine: Machine) -> Node:
    labels = {CLIQUE_LABEL: machine.label} if machine.label else {}
    meta = ObjectMeta(name=machine.name, uid=machine.name, resource_version="1", labels=labels)
    return Node(meta, NodeStatus((NodeCondition("Ready", "True" if machine.is_ready else "Unknown"),)))


def _caches(view: View) -> Caches:
    caches = Caches()
    for partition in filter(None, view.partitions.values()):
        caches.partitions.upsert(partition)
    for nvlink_node in view.nvlink_nodes.values():
        caches.nvlink_nodes.upsert(nvlink_node)
    for found in view.nodes.values():
        caches.nodes.upsert(found)
    for domain in view.domains.values():
        caches.compute_domains.upsert(domain)
    for uid, node in view.claims:
        caches.claims.upsert(claim_object(uid, node))
    return caches
