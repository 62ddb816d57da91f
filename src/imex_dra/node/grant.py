"""May a claim have a channel on this node now, and which one? Pure functions of one `Snapshot`.

Everything the node knows is in the snapshot. What a prepare answers, what the NVLinkNode reports and when devices
are published are all functions of it, so they cannot contradict each other. See docs/design/prepare.md.
"""

from typing import NamedTuple

from msgspec import Struct

from imex_dra.api.computedomain import (
    ACCEPTED,
    CHANNEL_ASSIGNED,
    AllocationMode,
    ComputeDomain,
    ComputeDomainStatus,
)
from imex_dra.api.domainreasons import (
    all_channels_refused,
    compute_domain_deleting,
    no_such_compute_domain,
    other_namespace,
)
from imex_dra.api.meta import OTHER_DRIVER, is_deleting, key_of
from imex_dra.api.names import PartitionId
from imex_dra.api.nodereasons import (
    daemon_not_ready,
    fabric_broken,
    fabric_pending,
    host_index_unknown,
    index_differs,
    node_list_owner,
    node_lists_differ,
    node_not_listed,
    peers_unknown,
    peers_unreachable,
)
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import (
    CHANNELS_REUSABLE,
    ChannelAssignment,
    ChannelState,
    Member,
    MemberState,
    NVLinkPartition,
)
from imex_dra.api.partitionreasons import (
    assignment_blocked,
    drain_first,
    no_channel_assigned,
    not_a_member,
    partition_not_received,
    partition_outdated,
    suspended,
)
from imex_dra.api.reasons import Explanation, Reason
from imex_dra.base.errors import Rejected
from imex_dra.daemon.state import UNKNOWN_DAEMON, DaemonState
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.conditions import find_condition
from imex_dra.node.claim import ChannelRequest

NO_CHANNEL = -1

_CHANNEL_CAUSES = {Reason.CHANNELS_EXHAUSTED, Reason.CHANNEL_LIMIT}
"""Why the controller assigns no channel, in the status of a ComputeDomain."""

MAX_CLAIMS = 16
"""Default of `imex node --max-claims`. Each claim needs a device of the ResourceSlice, which can have 128."""


class Snapshot(Struct, frozen=True):
    """What the node knows at one moment."""

    node: str
    reading: Reading = Reading()
    daemon: DaemonState = UNKNOWN_DAEMON
    partition_id: PartitionId = PartitionId("")
    """The partition the node belongs to: the one its GPUs report, or reported before the fabric broke."""
    watched_partition: NVLinkPartition | None = None
    """The NVLinkPartition that the watch delivered last. Read `partition`, which is never another node's."""
    foreign_claims: tuple[str, ...] = ()
    """Live claims that were prepared while the node belonged to another partition."""
    address: str = ""
    """On which the IMEX daemon is to listen, if it was found and not given."""
    address_problem: Explanation | None = None
    """Why it was not found so far."""
    host_managed: bool = False
    """Whether the host manages nvidia-imex."""
    is_publisher: bool = False
    """Whether this process publishes for the node; during an update two node programs run."""
    max_claims: int = MAX_CLAIMS
    """How many claims the node offers to hold at a time."""
    unreachable: tuple[str, ...] = ()
    """Members that the IMEX daemon has not reached for a while (`lasting`)."""
    expelled: bool = False
    """Whether the IMEX daemon has run for a while in the partition that no longer lists the node (`lasting`)."""
    prepares: int = 0
    """Counts claims that were prepared; a change means that there is one to report."""
    unprepare_sequence: int = 0
    """Counts unprepare calls; a change means that fewer channels may be held."""

    @property
    def is_complete(self) -> bool:
        """Whether the hardware was read, the state of nvidia-imex was found, and the address was looked for."""
        is_addressed = bool(self.listening_address or self.address_problem)
        return self.reading != Reading() and self.daemon != UNKNOWN_DAEMON and is_addressed

    @property
    def listening_address(self) -> str:
        """Of the process that binds it, if that is in the network of pods."""
        return self.daemon.address or self.address

    @property
    def partition(self) -> NVLinkPartition | None:
        """None also while the watch still delivers the partition that the node has left."""
        watched = self.watched_partition
        return watched if watched is not None and watched.metadata.name == self.partition_id else None

    @property
    def member(self) -> Member | None:
        members = self.partition.status.members if self.partition else ()
        own = (m for m in members if m.node == self.node and m.state is not MemberState.LEAVING)
        return next(own, None)

    @property
    def other_members(self) -> tuple[Member, ...]:
        members = self.partition.status.members if self.partition else ()
        return tuple(m for m in members if m.node != self.node and m.state is not MemberState.LEAVING)

    @property
    def connected_members(self) -> frozenset[str] | None:
        """Members that the IMEX daemon is connected to, in both directions. None while that is not known, for
        example because the daemon is not READY.
        """
        daemon = self.daemon
        # An index means something only within its partition.
        if (
            daemon.connected is None
            or daemon.state is not ImexState.READY
            or daemon.partition != self.partition_id
        ):
            return None
        return frozenset(m.node for m in self.other_members if m.index in daemon.connected)

    def assignment(self, domain_uid: str) -> ChannelAssignment | None:
        channels = self.partition.status.channels if self.partition else ()
        own = (c for c in channels if c.state is ChannelState.ASSIGNED and c.compute_domain.uid == domain_uid)
        return next(own, None)


class Obstacle(NamedTuple):
    """Why there is no grant. `terminal`: waiting cannot change it."""

    explanation: Explanation
    terminal: bool = False


class Grant(NamedTuple):
    domain_name: str
    partition: str
    channel: int
    all_channels: bool
    epoch: int = 0
    """Epoch of the NVLinkPartition that the grant was read from."""


def partition_of(reading: Reading, before: PartitionId) -> PartitionId:
    """A broken or pending fabric names no partition, but the node still belongs to the one before."""
    unclear = reading.fabric.state in (FabricState.BROKEN, FabricState.PENDING)
    return reading.partition or (before if unclear else PartitionId(""))


def node_obstacle(snapshot: Snapshot) -> Obstacle | None:
    """What prevents the node from serving any claim."""
    fabric, node = snapshot.reading.fabric, snapshot.node
    match fabric.state:
        case FabricState.NONE:
            return None
        case FabricState.BROKEN:
            return Obstacle(fabric_broken(node=node, cause=fabric.reason), terminal=True)
        case FabricState.PENDING:
            return Obstacle(fabric_pending(node=node, cause=fabric.reason))
    member = snapshot.member
    if member is not None and member.state is MemberState.SUSPENDED:
        # Members may have left while it was Suspended, without its daemon knowing: a channel that was reused since
        # must not be opened here before the daemon has the current list (`controller.liveness`).
        return Obstacle(suspended(node=node, partition=snapshot.partition_id))
    obstacle = _node_list_obstacle(snapshot) or (
        _daemon_obstacle(snapshot, member) if member else _membership_obstacle(snapshot)
    )
    return obstacle or _other_driver_obstacle(snapshot)


def is_connected(snapshot: Snapshot) -> bool:
    """Whether the IMEX daemon is connected to every other Ready member. One that is dead is not Ready."""
    connected = snapshot.connected_members
    ready = {member.node for member in snapshot.other_members if member.state is MemberState.READY}
    return snapshot.member is not None and connected is not None and ready <= connected


def grant_or_obstacle(snapshot: Snapshot, request: ChannelRequest, fence: int = 0) -> Grant | Obstacle:
    """For a node with NVLink fabric. Only the controller assigns; nothing in the claim replaces its assignment.

    `fence` is the epoch that this node acknowledged: a partition object from an earlier epoch grants nothing,
    because its channels may belong to other ComputeDomains by now.
    """
    obstacle = node_obstacle(snapshot)
    if obstacle is not None and obstacle.terminal:
        return obstacle
    partition = snapshot.partition
    if partition is not None and partition.status.epoch < fence:
        name, epoch = partition.metadata.name, partition.status.epoch
        return Obstacle(partition_outdated(partition=name, node=snapshot.node, epoch=epoch, acknowledged=fence))
    assignment = snapshot.assignment(request.domain_uid)
    if assignment is None:
        unassigned = no_channel_assigned(domain=request.domain, partition=snapshot.partition_id)
        return obstacle or Obstacle(unassigned)
    domain = assignment.compute_domain
    if domain.namespace != request.claim.namespace:
        return Obstacle(_other_namespace(request), terminal=True)
    all_channels = request.mode is AllocationMode.ALL
    if all_channels and not assignment.all_channels:
        refused = all_channels_refused(domain=f"{domain.namespace}/{domain.name}")
        return Obstacle(refused, terminal=True)
    if obstacle is not None:
        return obstacle
    epoch = partition.status.epoch if partition else 0
    return Grant(domain.name, snapshot.partition_id, assignment.channel, all_channels, epoch)


def peers_obstacle(snapshot: Snapshot, domain: ComputeDomain | None) -> Obstacle | None:
    """Whether other nodes with claims of the ComputeDomain, as its status lists them, are still out of reach.

    A status that does not list this node yet is older than the claim, and says nothing about the others. Nodes in
    other partitions are never connected, and do not count.
    """
    status = domain.status if domain else ComputeDomainStatus()
    listed = {node.name for node in status.nodes if node.clique_id == snapshot.partition_id}
    is_current = snapshot.node in listed or status.nodes_omitted > 0
    name = str(key_of(domain)) if domain else "of the claim"
    if not is_current:
        return Obstacle(node_not_listed(domain=name, node=snapshot.node, partition=snapshot.partition_id))
    connected = snapshot.connected_members
    missing = listed - {snapshot.node} - (connected or frozenset())
    if not missing:
        return None
    if connected is None:
        return Obstacle(peers_unknown(domain=name, node=snapshot.node))
    return Obstacle(peers_unreachable(domain=name, node=snapshot.node, peers=sorted(missing)))


def grant_without_fabric(snapshot: Snapshot, domain: ComputeDomain) -> Grant:
    """A node that is proven to have no fabric runs the pod without a channel, as NVIDIA's driver does."""
    assert snapshot.reading.fabric.state is FabricState.NONE
    return Grant(domain.metadata.name, "", NO_CHANNEL, all_channels=False)


def find_domain(request: ChannelRequest, domains: list[ComputeDomain]) -> ComputeDomain:
    """Raises Rejected if the claim's ComputeDomain can never give it a channel."""
    domain = next((domain for domain in domains if domain.metadata.uid == request.domain_uid), None)
    if domain is None:
        claim, namespace = str(request.claim), request.claim.namespace
        missing = no_such_compute_domain(claim=claim, uid=request.domain_uid, namespace=namespace)
        raise missing.error(Rejected)
    if domain.metadata.namespace != request.claim.namespace:
        raise _other_namespace(request).error(Rejected)
    if is_deleting(domain):
        raise compute_domain_deleting(domain=str(key_of(domain))).error(Rejected)
    accepted = find_condition(domain.status.conditions, ACCEPTED)
    if accepted is not None and accepted.status == "False":
        rejection = Rejected(accepted.message)
        rejection.reason = accepted.reason
        raise rejection
    return domain


def with_controllers_cause(
    explanation: Explanation, domain: ComputeDomain | None, snapshot: Snapshot
) -> Explanation:
    """Replaces "no channel yet" by the cause that the controller has written, if it concerns this partition: only
    the controller knows why it assigns none.
    """
    if explanation.reason is not Reason.NO_CHANNEL_ASSIGNED or snapshot.partition is None:
        return explanation
    if (blocked := _assignment_blocked(snapshot.partition)) is not None:
        return blocked._replace(reason=explanation.reason)
    if domain is None:
        return explanation
    node, partition = snapshot.node, snapshot.partition_id
    # The condition joins the causes of all partitions, so what it says of the node itself comes first. A status
    # with very many nodes does not list all of them.
    entries = (entry for entry in domain.status.nodes if (entry.name, entry.clique_id) == (node, partition))
    condition = find_condition(domain.status.conditions, CHANNEL_ASSIGNED)
    found = [entry.message for entry in entries if entry.reason in _CHANNEL_CAUSES]
    if condition is not None and condition.status == "False" and condition.reason in _CHANNEL_CAUSES:
        found.append(condition.message)
    for message in found:
        cause, _, next_step = message.partition("; ")
        if partition in cause:
            return Explanation(explanation.reason, cause, next_step)
    return explanation


def _assignment_blocked(partition: NVLinkPartition) -> Explanation | None:
    """Why a recovering partition assigns no channel. It says so itself, in the write that plans it. The status of
    a ComputeDomain says it later, and still does after the partition has recovered while no controller runs.
    """
    status = partition.status
    if not status.pending_reports and not status.required_generation:
        return None
    condition = find_condition(status.conditions, CHANNELS_REUSABLE)
    cause, _, next_step = (condition.message if condition else "it recovers").partition("; ")
    return assignment_blocked(partition=partition.metadata.name, cause=cause)._replace(next_step=next_step)


def _membership_obstacle(snapshot: Snapshot) -> Obstacle:
    node, partition = snapshot.node, snapshot.partition_id
    if snapshot.address_problem is not None and not snapshot.listening_address:
        return Obstacle(snapshot.address_problem)
    if snapshot.foreign_claims:
        return Obstacle(drain_first(node=node, partition=partition, holders=snapshot.foreign_claims))
    if snapshot.partition is None:
        return Obstacle(partition_not_received(node=node, partition=partition))
    return Obstacle(not_a_member(node=node, partition=partition))


def _node_list_obstacle(snapshot: Snapshot) -> Obstacle | None:
    """If hosts manage the IMEX daemons: what keeps the membership of this one from being verified."""
    daemon, node, partition = snapshot.daemon, snapshot.node, snapshot.partition
    host_list = daemon.host_list
    if host_list is not None and daemon.state is not ImexState.READY:
        return _daemon_not_ready(snapshot)
    if host_list is not None and daemon.index < 0:
        return Obstacle(host_index_unknown(node=node))
    digest = host_list.digest if host_list else ""
    if partition is None or not partition.status.members or digest == partition.status.node_list_digest:
        return None
    owner = node_list_owner(is_host_managed=host_list is not None)
    return Obstacle(node_lists_differ(node=node, partition=snapshot.partition_id, owner=owner))


def _daemon_not_ready(snapshot: Snapshot) -> Obstacle:
    daemon, problems = snapshot.daemon, [snapshot.reading.imex_problem, snapshot.daemon.problem]
    if not daemon.is_supervised:
        # Nothing is read meanwhile (`node.state.follow_hardware`), so the other one may be over.
        problems.reverse()
    problem = problems[0] or problems[1]
    return Obstacle(daemon_not_ready(node=snapshot.node, state=daemon.state, problem=problem))


def _daemon_obstacle(snapshot: Snapshot, member: Member) -> Obstacle | None:
    daemon, node, partition = snapshot.daemon, snapshot.node, snapshot.partition_id
    if daemon.state is not ImexState.READY:
        return _daemon_not_ready(snapshot)
    if (daemon.partition, daemon.index) != (partition, member.index):
        running, assigned, problem = daemon.index, member.index, daemon.problem
        return Obstacle(
            index_differs(node=node, partition=partition, running=running, assigned=assigned, problem=problem)
        )
    return None


def _other_driver_obstacle(snapshot: Snapshot) -> Obstacle | None:
    """The controller has found another driver of the same name, and changes nothing while it is present."""
    conditions = snapshot.partition.status.conditions if snapshot.partition else ()
    found = find_condition(conditions, OTHER_DRIVER)
    if found is None or found.status != "True":
        return None
    return Obstacle(Explanation(Reason.OTHER_DRIVER_PRESENT, found.message))


def _other_namespace(request: ChannelRequest) -> Explanation:
    namespace = request.claim.namespace
    return other_namespace(claim=str(request.claim), domain=request.domain_uid, namespace=namespace)
