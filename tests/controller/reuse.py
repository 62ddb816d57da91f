"""A world in which channels are given, recalled and given again: real decisions, real ledgers on disk.

Two partitions, a few machines, two controllers of which each may have seen less than there is, and on each machine
up to two node programs, each with its own, maybe old, view. What a program has decided and not yet written waits,
and may be written much later, or never.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.computedomain import (
    AllocationMode,
    ComputeDomain,
    ComputeDomainSpec,
    ComputeDomainStatus,
    DomainPartition,
)
from imex_dra.api.meta import AnnotatedMeta, ObjectMeta
from imex_dra.api.names import PartitionId, name_format
from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import (
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.base.clock import SystemClock
from imex_dra.base.errors import NotYet
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.controller.channels import Want
from imex_dra.controller.decision import Seen, decide
from imex_dra.dra.plugin import ClaimId
from imex_dra.hardware.protocol import Reading
from imex_dra.imex.link import DaemonState
from imex_dra.node import grants
from imex_dra.node.card import card_status, strangers
from imex_dra.node.cards import promised
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim
from imex_dra.node.claims import Wish
from imex_dra.node.ledger import Ledger
from imex_dra.node.readiness import Knowledge

SLOTS = 4
NOW = SystemClock().now()


class NoDevices:
    async def read(self) -> Reading:
        raise NotImplementedError

    def container_edits(self, channel: int) -> ContainerEdits:
        return ContainerEdits()


class Process(NamedTuple):
    channel: int
    domain: str


class Daemon(NamedTuple):
    partition: str
    slot: int
    generation: int
    peers: frozenset[str]


class Pending(NamedTuple):
    """A prepare that has its grant and has not entered it."""

    claim: PreparedClaim
    began: Checkpoint
    recall: int


class Answer(NamedTuple):
    """A card that is not written yet, and the version that it was made from."""

    status: NVLinkNodeStatus
    version: int


@dataclass
class Program:
    """One `imex node`: what it has seen of its partition, and what it is about to do."""

    seen: NVLinkPartition | None = None
    pending: list[Pending] = field(default_factory=list)
    answer: Answer | None = None


@dataclass
class Machine:
    name: str
    root: Path
    place: PartitionId
    channels: int
    """Of which 0 is never given."""
    boot: int = 1
    exists: bool = True
    """As a Node object."""
    label: str = ""
    processes: dict[str, Process] = field(default_factory=dict)
    """By claim."""
    daemon: Daemon | None = None
    memory: Daemon | None = None
    programs: list[Program] = field(default_factory=lambda: [Program()])
    card: NVLinkNode | None = None
    version: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint.json"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.name, CheckpointFile(self.checkpoint), Directory(self.root / "cdi"), NoDevices())

    def knowledge(self, seen: NVLinkPartition | None) -> Knowledge:
        reading = Reading(Fabric(FabricState.OK), self.place, "580", self.channels, f"boot-{self.boot}")
        state = DaemonState()
        if self.daemon:
            daemon = self.daemon
            state = DaemonState(ImexState.READY, daemon.partition, daemon.slot, daemon.generation)
        return Knowledge(self.name, reading, state, seen, self.place)


@dataclass
class Record:
    status: NVLinkPartitionStatus
    version: int


@dataclass
class View:
    """What a controller has seen."""

    records: dict[PartitionId, Record | None]
    cards: dict[str, NVLinkNode]
    nodes: dict[str, str]
    domains: dict[str, ComputeDomain]
    claims: frozenset[tuple[str, str]]


class World:
    def __init__(self, root: Path, nodes: dict[str, PartitionId], channels: int) -> None:
        partitions = sorted(set(nodes.values()))
        self.records: dict[PartitionId, Record | None] = dict.fromkeys(partitions)
        self.history: dict[PartitionId, list[NVLinkPartitionStatus]] = {name: [] for name in partitions}
        self.machines = {name: Machine(name, root / name, place, channels) for name, place in nodes.items()}
        self.domains: dict[str, ComputeDomain] = {}
        self.claims: set[tuple[str, str]] = set()
        """ComputeDomain and node."""
        self.views: list[View] = [self.look(), self.look()]
        self.versions = 0
        self.count = 0

    # Objects

    def record(self, name: PartitionId) -> NVLinkPartition | None:
        record = self.records[name]
        if record is None:
            return None
        spec = NVLinkPartitionSpec(SLOTS, name_format(name))
        return NVLinkPartition(AnnotatedMeta(name=name), spec, record.status)

    def add_domain(self) -> str:
        self.count += 1
        uid = f"d{self.count}"
        self.domains[uid] = ComputeDomain(AnnotatedMeta(name=uid, namespace="team", uid=uid), ComputeDomainSpec())
        return uid

    def delete_domain(self, uid: str) -> None:
        """Its claims are gone with it; its processes are not."""
        self.domains.pop(uid, None)
        self.claims = {claim for claim in self.claims if claim[0] != uid}

    def say_channels(self, uid: str) -> None:
        """The controller writes the ComputeDomain's status, which may be long after the assignment."""
        held = tuple(
            DomainPartition(name, entry.channel)
            for name, record in self.records.items()
            for entry in (record.status.channels if record else ())
            if entry.compute_domain.uid == uid and entry.state is ChannelState.ASSIGNED
        )
        self.domains[uid] = structs.replace(self.domains[uid], status=ComputeDomainStatus(partitions=held))

    # Controllers

    def look(self) -> View:
        machines = [machine for machine in self.machines.values() if machine.exists]
        return View(
            dict(self.records),
            {m.name: m.card for m in machines if m.card is not None},
            {m.name: m.label for m in machines},
            dict(self.domains),
            frozenset(self.claims),
        )

    def decide(self, view: View, name: PartitionId) -> NVLinkPartitionStatus:
        record = view.records[name]
        status = record.status if record else NVLinkPartitionStatus()
        assigned = [e.compute_domain.uid for e in status.channels if e.state is ChannelState.ASSIGNED]
        return decide(
            Seen(
                name=name,
                status=status,
                slots=SLOTS,
                cards=view.cards,
                nodes=view.nodes.keys(),
                labelled={node for node, label in view.nodes.items() if label == name},
                domains=tuple(view.domains.values()),
                wants={node: self._wants(view, node) for node in view.nodes},
                released={uid for uid in assigned if uid not in self.domains},  # which is confirmed live
            ),
            NOW,
        ).status

    def _wants(self, view: View, node: str) -> set[Want]:
        uids = {uid for uid, where in view.claims if where == node and uid in view.domains}
        return {Want(DomainReference("team", uid, uid)) for uid in uids}

    def write(self, view: View, name: PartitionId) -> None:
        """Only if the record is still the one that was seen."""
        if view.records[name] is not self.records[name]:
            return
        status = self.decide(view, name)
        record = self.records[name]
        if record is None and not any(card.status.partition == name for card in view.cards.values()):
            return
        if record is None or record.status != status:
            self.put(name, status)
        view.records[name] = self.records[name]

    def put(self, name: PartitionId, status: NVLinkPartitionStatus) -> None:
        self.versions += 1
        self.records[name] = Record(status, self.versions)
        self.history[name].append(status)

    def is_provably_old(self, name: PartitionId, status: NVLinkPartitionStatus) -> bool:
        cards = [machine.card.status for machine in self.machines.values() if machine.card and machine.exists]
        return any(
            card.answered_recall > status.recall or card.applied_generation > status.generation
            for card in cards
            if card.partition == name
        )

    def label(self) -> None:
        for machine in self.machines.values():
            if machine.exists and machine.card is not None and machine.card.status.partition:
                machine.label = machine.card.status.partition

    # Nodes

    def watch(self, machine: Machine, program: Program) -> None:
        program.seen = self.record(machine.place)

    def begin(self, machine: Machine, program: Program, uid: str) -> None:
        """A prepare decides: on what it watches, and live where the channel is not held here already."""
        checkpoint = machine.ledger.read()
        self.count += 1
        claim = f"claim-{self.count}"
        wish = Wish(ClaimId("team", claim, claim), uid, uid, AllocationMode.SINGLE, ())
        verdict = grants.decide(machine.knowledge(program.seen), wish, checkpoint.promised(machine.place))
        if not isinstance(verdict, grants.Grant):
            return
        if not checkpoint.shares(self._prepared(machine, wish, verdict)):
            live = machine.knowledge(self.record(machine.place))
            verdict = grants.decide(live, wish, checkpoint.promised(machine.place))
        if isinstance(verdict, grants.Grant):
            prepared = self._prepared(machine, wish, verdict)
            program.pending.append(Pending(prepared, checkpoint, verdict.recall))

    def _prepared(self, machine: Machine, wish: Wish, grant: grants.Grant) -> PreparedClaim:
        return PreparedClaim(
            uid=wish.claim.uid,
            namespace="team",
            name=wish.claim.name,
            domain_uid=wish.domain_uid,
            domain_name=wish.domain,
            partition=grant.partition,
            channel=grant.channel,
            all=False,
            devices=(),
            boot_id=f"boot-{machine.boot}",
        )

    def commit(self, machine: Machine, program: Program, which: int) -> None:
        claim, began, recall = program.pending.pop(which)
        try:
            machine.ledger.enter(claim, began, recall)
        except NotYet:
            return
        machine.processes[claim.uid] = Process(claim.channel, claim.domain_uid)

    def end(self, machine: Machine, claim: str) -> None:
        """The process is gone, then the kubelet unprepares."""
        del machine.processes[claim]
        machine.ledger.strike(claim)

    def answer(self, machine: Machine, program: Program) -> None:
        known = machine.knowledge(program.seen)
        checkpoint = promised(machine.ledger, known)
        outsiders = strangers(checkpoint, known.reading.boot_id, known.place)
        known = structs.replace(known, strangers=outsiders)
        last = machine.card.status if machine.card else NVLinkNodeStatus()
        program.answer = Answer(card_status(known, f"10.0.0.{machine.name}", checkpoint, last), machine.version)

    def publish(self, machine: Machine, program: Program) -> None:
        """Only if the card is still the one that was read."""
        answer, program.answer = program.answer, None
        if answer is not None and machine.exists and answer.version == machine.version:
            machine.version += 1
            machine.card = NVLinkNode(ObjectMeta(name=machine.name), answer.status)

    # Daemons

    def tell(self, machine: Machine, program: Program) -> None:
        """The member list reaches the daemon; a daemon of another partition is ended."""
        machine.daemon = machine.daemon or machine.memory  # an agent starts it by itself
        if machine.daemon is not None and machine.daemon.partition != machine.place:
            machine.daemon = machine.memory = None
        seen = program.seen
        if seen is None or seen.metadata.name != machine.place:
            return
        staying = {m.node: m for m in seen.status.members if m.state is not MemberState.LEAVING}
        if machine.name not in staying:
            return
        generation = seen.status.generation
        if machine.memory is None or machine.memory.generation <= generation:
            slot = staying[machine.name].slot
            machine.memory = machine.daemon = Daemon(machine.place, slot, generation, frozenset(staying))

    def connected(self, one: Machine, other: Machine) -> bool:
        """Each has the other in its list, of the same partition."""
        if one is other:
            return True
        if one.daemon is None or other.daemon is None or one.daemon.partition != other.daemon.partition:
            return False
        return other.name in one.daemon.peers and one.name in other.daemon.peers

    def leaks(self) -> list[str]:
        living = [(m, process) for m in self.machines.values() for process in m.processes.values()]
        return [
            f"{one.name} and {other.name} share channel {mine.channel}: {mine.domain} and {theirs.domain}"
            for one, mine in living
            for other, theirs in living
            if mine.channel == theirs.channel and mine.domain < theirs.domain and self.connected(one, other)
        ]
