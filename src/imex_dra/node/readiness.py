"""Can this node serve a claim now, and if not: is it worth waiting, and why? Pure.

Everything the node knows is in one `Knowledge`; every question is a function of it, so that what a prepare
says, what the card says and when seats are offered can't disagree.
"""

from typing import NamedTuple

from msgspec import Struct

from imex_dra.api.names import LEASE, NAMESPACE, PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, Member, MemberState, NVLinkPartition
from imex_dra.api.reasons import Reason, sentence
from imex_dra.hardware.protocol import Reading
from imex_dra.imex.link import DaemonState


class Knowledge(Struct, frozen=True):
    node: str
    reading: Reading = Reading()
    daemon: DaemonState = DaemonState()
    partition: NVLinkPartition | None = None
    place: PartitionId = PartitionId("")
    """The partition that the hardware names, or named before its fabric broke: only another ends membership."""
    strangers: tuple[str, ...] = ()
    """Claims that were prepared in another partition, and whose processes may live."""
    speaking: bool = False
    """Whether this program speaks for the node, if there are two."""
    unprepared: int = 0
    """Counts unprepares: what the ledger holds may be less now."""

    @property
    def has_looked(self) -> bool:
        """Whether there was a first look at the hardware, and a first word of the agent, or none to be had."""
        return self.reading != Reading() and self.daemon != DaemonState()

    @property
    def home(self) -> NVLinkPartition | None:
        """The partition as it was last seen, if it is the one where the node is now."""
        seen = self.partition
        return seen if seen is not None and seen.metadata.name == self.place else None

    @property
    def member(self) -> Member | None:
        members = self.home.status.members if self.home else ()
        mine = (m for m in members if m.node == self.node and m.state is not MemberState.LEAVING)
        return next(mine, None)

    def assignment(self, domain_uid: str) -> ChannelAssignment | None:
        channels = self.home.status.channels if self.home else ()
        mine = (c for c in channels if c.state is ChannelState.ASSIGNED and c.compute_domain.uid == domain_uid)
        return next(mine, None)


class Obstacle(NamedTuple):
    reason: Reason
    hopeless: bool
    facts: dict[str, object]

    def words(self, waited: float = 0.0) -> str:
        return sentence(self.reason, waited, **self.facts)


def obstacle(known: Knowledge) -> Obstacle | None:
    """What keeps the node as a whole from serving; the same for every claim."""
    fabric = known.reading.fabric
    match fabric.state:
        case FabricState.NONE:
            return None
        case FabricState.BROKEN:
            return Obstacle(Reason.FABRIC_BROKEN, True, {"node": known.node, "cause": fabric.reason})
        case FabricState.PENDING:
            return Obstacle(Reason.FABRIC_PENDING, False, {"node": known.node, "cause": fabric.reason})
    return _membership_obstacle(known) or _daemon_obstacle(known)


def place_of(reading: Reading, before: PartitionId) -> PartitionId:
    """Where the node is by this reading; a fabric that is broken or not up yet is no reason to be elsewhere."""
    unclear = reading.fabric.state in (FabricState.BROKEN, FabricState.PENDING)
    return reading.partition or (before if unclear else PartitionId(""))


def _membership_obstacle(known: Knowledge) -> Obstacle | None:
    facts: dict[str, object]
    if known.member is not None:
        return None
    if known.strangers:
        facts = {"node": known.node, "partition": known.reading.partition, "holders": ", ".join(known.strangers)}
        return Obstacle(Reason.DRAIN_FIRST, False, facts)
    facts = {
        "node": known.node,
        "partition": known.reading.partition,
        "controller_namespace": NAMESPACE,
        "lease": LEASE,
    }
    return Obstacle(Reason.NOT_A_MEMBER, False, facts)


def _daemon_obstacle(known: Knowledge) -> Obstacle | None:
    daemon, member = known.daemon, known.member
    assert member is not None
    if daemon.state is not ImexState.READY:
        cause = f": {daemon.problem}" if daemon.problem else ""
        facts: dict[str, object] = {"node": known.node, "state": daemon.state, "cause": cause}
        return Obstacle(Reason.DAEMON_NOT_READY, False, facts)
    if (daemon.partition, daemon.slot) != (known.reading.partition, member.slot):
        facts = {
            "node": known.node,
            "running": daemon.slot,
            "assigned": member.slot,
            "partition": known.reading.partition,
        }
        return Obstacle(Reason.SLOT_DIFFERS, False, facts)
    return None


def connected_to_all(known: Knowledge) -> bool:
    """With every other member that is READY itself; asked only before the first seats are offered."""
    if known.home is None or known.member is None:
        return False
    others = {
        member.slot
        for member in known.home.status.members
        if member.state is MemberState.READY and member.node != known.node
    }
    return others <= set(known.daemon.connected)
