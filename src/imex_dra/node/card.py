"""The node's card: what it tells the controller about itself. Pure."""

from imex_dra.api.nvlinknode import ImexState, NVLinkNodeStatus
from imex_dra.imex.link import DaemonState
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.readiness import Knowledge, obstacle

_ELSEWHERE = DaemonState()
"""Slots and generations count within a partition: a daemon that still runs in another one has none in this."""


def card_status(
    known: Knowledge, address: str, checkpoint: Checkpoint, last: NVLinkNodeStatus
) -> NVLinkNodeStatus:
    """Held channels are as of the applied generation: a pod that comes or goes is no reason to write."""
    hindrance = obstacle(known)
    daemon = known.daemon if known.daemon.partition == known.reading.partition else _ELSEWHERE
    applied = daemon.generation
    renewed = applied != last.applied_generation or known.reading.partition != last.partition
    return NVLinkNodeStatus(
        fabric=known.reading.fabric,
        partition=known.reading.partition,
        address=address,
        slot=daemon.slot,
        imex_state=known.daemon.state,
        connected=daemon.connected,
        driver_version=known.reading.driver_version,
        channel_count=known.reading.channel_count,
        boot_id=known.reading.boot_id,
        applied_generation=applied,
        held_channels=_held(checkpoint, known.reading.partition) if renewed else last.held_channels,
        isolation=known.reading.isolation,
        problem=hindrance.words() if hindrance else _remark(known.daemon),
    )


def _remark(daemon: DaemonState) -> str:
    """What a daemon that serves has to say nevertheless."""
    return daemon.problem if daemon.state is ImexState.READY else ""


def _held(checkpoint: Checkpoint, partition: str) -> tuple[int, ...]:
    held = {c.channel for c in checkpoint.claims.values() if c.partition == partition and c.channel >= 0}
    return tuple(sorted(held))
