"""What the NVLinkNode says about the node: a pure function of the snapshot, the checkpoint and the last report."""

from datetime import datetime
from typing import TypeVar

from msgspec import structs

from imex_dra.api import domainreasons, nodereasons
from imex_dra.api.limits import MAX_GPUS, MAX_PRODUCT, MAX_TEXT
from imex_dra.api.meta import OTHER_DRIVER, Condition
from imex_dra.api.nvlinknode import (
    CONNECTED,
    READY,
    Fabric,
    FabricState,
    GpuFabric,
    HeldChannel,
    HostNodeList,
    ImexState,
    Isolation,
    NVLinkNodeStatus,
)
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition
from imex_dra.api.reasons import Explanation
from imex_dra.daemon.state import DaemonState, is_same_version
from imex_dra.kube.conditions import with_condition
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Snapshot, node_obstacle
from imex_dra.node.lasting import unconnected_members
from imex_dra.node.prepared import DiskError

F = TypeVar("F", Fabric, GpuFabric, Isolation)


def node_status(
    snapshot: Snapshot,
    checkpoint: Checkpoint | DiskError,
    last: NVLinkNodeStatus,
    now: datetime,
) -> NVLinkNodeStatus:
    """`last` is the status as it was written last."""
    readiness = _readiness(snapshot)
    if isinstance(checkpoint, DiskError):
        failed = nodereasons.disk_error(node=snapshot.node, cause=checkpoint.cause)
        readiness = False, failed.for_node()
        # What was prepared is unknown, as it is without a boot ID: all that depends on it stays as it was.
        checkpoint = Checkpoint()
        snapshot = structs.replace(snapshot, reading=structs.replace(snapshot.reading, boot_id=""))
    # An index and a generation mean something only within their partition.
    daemon = snapshot.daemon if snapshot.daemon.partition == snapshot.partition_id else DaemonState()
    acknowledged = _acknowledged_epoch(snapshot, checkpoint, last)
    unreachable = _unreachable(snapshot, last)
    status = NVLinkNodeStatus(
        fabric=_cut(snapshot.reading.fabric),
        partition=snapshot.partition_id,
        # A program that has just started may not know it yet.
        address=snapshot.listening_address or last.address,
        index=daemon.index,
        imex_state=snapshot.daemon.state,
        imex_started_at=_imex_started_at(snapshot, last),
        driver_version=snapshot.reading.driver_version,
        product=snapshot.reading.product[:MAX_PRODUCT] or last.product,
        gpu_count=min(snapshot.reading.gpu_count, MAX_GPUS),
        gpus=tuple(_cut(gpu) for gpu in snapshot.reading.gpus[:MAX_GPUS]),
        channel_count=snapshot.reading.channel_count or last.channel_count,
        max_claims=snapshot.max_claims,
        boot_id=snapshot.reading.boot_id or last.boot_id,
        imex_partition=_imex_partition(snapshot, last),
        applied_generation=daemon.generation,
        acknowledged_epoch=acknowledged,
        held_channels=_held_channels(snapshot, checkpoint, acknowledged, last),
        isolation=_cut(snapshot.reading.isolation),
        host_node_list=_host_node_list(snapshot, last),
        unreachable=unreachable,
        prepared_claims=_prepared_claims(snapshot, checkpoint, last),
        conditions=_conditions(snapshot, readiness, unreachable, last.conditions, now),
    )
    unprepared_only = set(status.prepared_claims) <= set(last.prepared_claims) and (
        structs.replace(status, prepared_claims=last.prepared_claims) == last
    )
    return last if unprepared_only else status


def _cut(found: F) -> F:
    """The API server refuses a reason that is too long, and with it the whole report."""
    return structs.replace(found, reason=found.reason[:MAX_TEXT])


def _live_channels(checkpoint: Checkpoint, boot_id: str) -> tuple[HeldChannel, ...]:
    live = checkpoint.live_claims(boot_id)
    return tuple(sorted({HeldChannel(c.partition, c.channel, c.domain_uid) for c in live}))


def _acknowledged_epoch(snapshot: Snapshot, checkpoint: Checkpoint, last: NVLinkNodeStatus) -> int:
    """A fence acknowledges an epoch only together with the held channels, and these need a boot ID."""
    if snapshot.reading.boot_id:
        return checkpoint.fence(snapshot.partition_id)
    return last.acknowledged_epoch if last.partition == snapshot.partition_id else 0


def _held_channels(
    snapshot: Snapshot, checkpoint: Checkpoint, acknowledged: int, last: NVLinkNodeStatus
) -> tuple[HeldChannel, ...]:
    """As of the acknowledgment or later. A channel that is new here is reported together with the prepared claim:
    if the partition is restored from an older backup, this report is the proof. A pod that ends is no reason to
    write, unless the controller waits to hear that its channel is no longer held.
    """
    boot_id = snapshot.reading.boot_id
    if not boot_id:
        return last.held_channels
    now = _live_channels(checkpoint, boot_id)
    newer = (snapshot.partition_id, boot_id, acknowledged) != (
        last.partition,
        last.boot_id,
        last.acknowledged_epoch,
    )
    gone = [held for held in last.held_channels if held not in now]
    is_new = any(held not in last.held_channels for held in now)
    if newer or is_new or any(_is_awaited(held, snapshot.partition, acknowledged) for held in gone):
        return now
    return last.held_channels


def _is_awaited(held: HeldChannel, partition: NVLinkPartition | None, acknowledged: int) -> bool:
    """Whether the controller waits to hear that this channel is no longer held."""
    same = partition is not None and partition.metadata.name == held.partition
    for entry in partition.status.channels if partition is not None and same else ():
        if (entry.channel, entry.compute_domain.uid) == (held.channel, held.compute_domain):
            # A channel that was released in this epoch is asked for with the next one, which is acknowledged with
            # all held channels. After that the controller does not ask again.
            return entry.state is ChannelState.RELEASED and entry.released_epoch < acknowledged
    return True


def _imex_partition(snapshot: Snapshot, last: NVLinkNodeStatus) -> str:
    """Without its supervisor, nvidia-imex may still be running."""
    unknown = bool(snapshot.daemon.problem) and not snapshot.daemon.partition
    return last.imex_partition if unknown else snapshot.daemon.partition


def _host_node_list(snapshot: Snapshot, last: NVLinkNodeStatus) -> HostNodeList | None:
    """Also before the first query: without it, the daemon would count as one of this driver."""
    if not snapshot.host_managed:
        return None
    return snapshot.daemon.host_list or last.host_node_list or HostNodeList()


def _imex_started_at(snapshot: Snapshot, last: NVLinkNodeStatus) -> str:
    """A daemon that ends before it is READY is no reason to write."""
    is_ready = snapshot.daemon.state is ImexState.READY
    return (snapshot.daemon.started_at if is_ready else "") or last.imex_started_at


def _unreachable(snapshot: Snapshot, last: NVLinkNodeStatus) -> tuple[str, ...]:
    """A member stays listed until it is connected, also by a program that has just started."""
    if snapshot.daemon.state is not ImexState.READY:
        return ()
    if snapshot.connected_members is None:
        members = {member.node for member in snapshot.other_members}
        return tuple(node for node in last.unreachable if node in members)
    return tuple(sorted(unconnected_members(snapshot) & {*snapshot.unreachable, *last.unreachable}))


def _prepared_claims(snapshot: Snapshot, checkpoint: Checkpoint, last: NVLinkNodeStatus) -> tuple[str, ...]:
    """Also those without a channel. A claim of an earlier boot must be prepared again."""
    boot_id = snapshot.reading.boot_id
    if not boot_id:
        return last.prepared_claims
    return tuple(sorted(uid for uid, claim in checkpoint.claims.items() if claim.boot_id == boot_id))


def _conditions(
    snapshot: Snapshot,
    readiness: tuple[bool, Explanation],
    unreachable: tuple[str, ...],
    last: tuple[Condition, ...],
    now: datetime,
) -> tuple[Condition, ...]:
    # A reporter runs only while no other driver serves the node.
    kept = tuple(condition for condition in last if condition.type != OTHER_DRIVER)
    conditions = _with(kept, READY, *readiness, now)
    if snapshot.reading.fabric.state is FabricState.NONE:
        return tuple(condition for condition in conditions if condition.type != CONNECTED)
    return _with(conditions, CONNECTED, *_connectivity(snapshot, unreachable), now)


def _with(
    conditions: tuple[Condition, ...], type_: str, status: bool | None, explanation: Explanation, now: datetime
) -> tuple[Condition, ...]:
    message = explanation.message()
    return with_condition(conditions, type_, status=status, reason=explanation.reason, message=message, now=now)


def _readiness(snapshot: Snapshot) -> tuple[bool, Explanation]:
    obstacle = node_obstacle(snapshot)
    if obstacle is not None:
        return False, obstacle.explanation.for_node()
    if snapshot.reading.fabric.state is FabricState.NONE:
        return True, domainreasons.no_fabric(nodes=[snapshot.node])
    served = nodereasons.claims_served(node=snapshot.node)
    remark = snapshot.daemon.problem or _version_remark(snapshot)
    return True, served._replace(cause=f"{served.cause}, but {remark}") if remark else served


def _version_remark(snapshot: Snapshot) -> str:
    imex, driver = snapshot.daemon.version, snapshot.reading.driver_version
    return "" if is_same_version(imex, driver) else nodereasons.imex_version_differs(imex=imex, driver=driver)


def _connectivity(snapshot: Snapshot, unreachable: tuple[str, ...]) -> tuple[bool | None, Explanation]:
    daemon, node = snapshot.daemon, snapshot.node
    if daemon.state is not ImexState.READY:
        not_ready = nodereasons.daemon_not_ready(node=node, state=daemon.state, problem=daemon.problem)
        return None, not_ready.for_node()
    if daemon.unreported_since:
        return None, nodereasons.connections_unknown(node=node, since=daemon.unreported_since)
    if unreachable:
        return False, nodereasons.members_unreachable(node=node, members=unreachable)
    return True, nodereasons.members_reachable(node=node, partition=snapshot.partition_id)
