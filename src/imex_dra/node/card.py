"""The node's card: what it tells the controller about itself. Pure."""

from imex_dra.api.nvlinknode import HeldChannel, ImexState, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition
from imex_dra.imex.link import DaemonState
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.readiness import Knowledge, obstacle

_ELSEWHERE = DaemonState()
"""Slots and generations count within a partition: a daemon that still runs in another one has none in this."""


def card_status(
    known: Knowledge, address: str, checkpoint: Checkpoint, last: NVLinkNodeStatus
) -> NVLinkNodeStatus:
    hindrance = obstacle(known)
    daemon = known.daemon if known.daemon.partition == known.place else _ELSEWHERE
    answered = _answered(known, checkpoint, last)
    return NVLinkNodeStatus(
        fabric=known.reading.fabric,
        partition=known.place,
        address=address,
        slot=daemon.slot,
        imex_state=known.daemon.state,
        connected=daemon.connected,
        driver_version=known.reading.driver_version,
        channel_count=known.reading.channel_count or last.channel_count,
        boot_id=known.reading.boot_id or last.boot_id,
        imex_partition=_imex_partition(known, last),
        applied_generation=daemon.generation,
        answered_recall=answered,
        held_channels=_held(known, checkpoint, answered, last),
        isolation=known.reading.isolation,
        problem=hindrance.words() if hindrance else _remark(known.daemon),
    )


def _remark(daemon: DaemonState) -> str:
    """What a daemon that serves has to say nevertheless."""
    return daemon.problem if daemon.state is ImexState.READY else ""


def holdings(checkpoint: Checkpoint, boot_id: str) -> tuple[HeldChannel, ...]:
    """Each once, wherever it was given."""
    living = checkpoint.living(boot_id)
    return tuple(sorted({HeldChannel(c.partition, c.channel, c.domain_uid) for c in living}))


def strangers(checkpoint: Checkpoint, boot_id: str, place: str) -> tuple[str, ...]:
    """Claims whose channels were given in another partition than the node is in."""
    living = checkpoint.living(boot_id)
    return tuple(sorted(f"{c.namespace}/{c.name}" for c in living if c.partition != place))


def _answered(known: Knowledge, checkpoint: Checkpoint, last: NVLinkNodeStatus) -> int:
    """A promise is an answer only together with what is held, and that can't be said without a boot id."""
    if known.reading.boot_id:
        return checkpoint.promised(known.place)
    return last.answered_recall if last.partition == known.place else 0


def _held(
    known: Knowledge, checkpoint: Checkpoint, answered: int, last: NVLinkNodeStatus
) -> tuple[HeldChannel, ...]:
    """As of the answer: a pod that comes or goes is no reason to write, unless the number that it let go rests."""
    if not known.reading.boot_id:
        return last.held_channels  # whose processes live can't be said without it
    now = holdings(checkpoint, known.reading.boot_id)
    renewed = (known.place, known.reading.boot_id, answered) != (
        last.partition,
        last.boot_id,
        last.answered_recall,
    )
    let_go = [held for held in last.held_channels if held not in now]
    if renewed or any(not _is_assigned(held, known.home) for held in let_go):
        return now
    return last.held_channels


def _is_assigned(held: HeldChannel, home: NVLinkPartition | None) -> bool:
    entries = home.status.channels if home is not None and home.metadata.name == held.partition else ()
    assigned = (e for e in entries if e.state is ChannelState.ASSIGNED)
    return any((e.channel, e.compute_domain.uid) == (held.channel, held.compute_domain) for e in assigned)


def _imex_partition(known: Knowledge, last: NVLinkNodeStatus) -> str:
    """An agent that does not answer may have left its daemon running."""
    silent = bool(known.daemon.problem) and not known.daemon.partition
    return last.imex_partition if silent else known.daemon.partition
