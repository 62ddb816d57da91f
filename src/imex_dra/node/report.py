"""Reports the node to the controller: its NVLinkNode.

A pod that ends is no reason to write. A pod that starts is reported about a second later, together with others
that start at the same time, so that the write does not compete with them.

An epoch is acknowledged here: first the checkpoint's fence is raised, then the NVLinkNode says which channels are
held (docs/design/channel-reuse.md). Not the other way round: a prepare could commit an older grant in between.
"""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, NoReturn

import structlog
from msgspec import structs

from imex_dra.api.meta import Key, ObjectMeta, OwnerReference
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.views import NODES
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, Conflict, ImexError, NotFound
from imex_dra.base.waiting import wait_any
from imex_dra.kube.backoff import Backoff, jittered
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Snapshot, partition_of
from imex_dra.node.nodestatus import node_status
from imex_dra.node.prepared import DiskError, PreparedClaims
from imex_dra.node.state import NodeState

log = structlog.get_logger()

_PERIOD = 60.0
"""Seconds after which the object is read again although only this node writes it: it may be gone."""
_GATHER = 1.0
"""Seconds after the last prepare until the claims that were prepared are reported."""
_GATHER_LIMIT = 5.0
"""Seconds until they are reported although more are being prepared."""
_START_LIMIT = 5.0
"""Seconds that a starting program waits for its first hardware reading and the first state of nvidia-imex."""


class Report(NamedTuple):
    status: NVLinkNodeStatus
    foreign_claims: tuple[str, ...]
    error: DiskError | None = None
    """Why the report says nothing new about claims and channels."""


def make_report(prepared: PreparedClaims, snapshot: Snapshot, last: NVLinkNodeStatus, now: datetime) -> Report:
    """Acknowledges the epoch that the snapshot shows, and reports. Blocks on the disk: call it in a thread.

    Fence and report use one snapshot and one checkpoint: the acknowledged epoch and the held channels must match.
    """
    try:
        checkpoint = acknowledge(prepared, snapshot)
    except DiskError as error:
        return Report(node_status(snapshot, error, last, now), snapshot.foreign_claims, error)
    foreign = foreign_claims(checkpoint, snapshot.reading.boot_id, snapshot.partition_id)
    snapshot = structs.replace(snapshot, foreign_claims=foreign)
    return Report(node_status(snapshot, checkpoint, last, now), foreign)


def acknowledge(prepared: PreparedClaims, snapshot: Snapshot) -> Checkpoint:
    """Raises the fence to the partition's epoch. Without a boot ID it is unknown which claims are live, and so
    nothing can be acknowledged.
    """
    if not snapshot.partition_id or not snapshot.reading.boot_id:
        return prepared.read()
    epoch = snapshot.partition.status.epoch if snapshot.partition else 0
    return prepared.raise_fence(snapshot.partition_id, epoch)


def foreign_claims(checkpoint: Checkpoint, boot_id: str, partition_id: str) -> tuple[str, ...]:
    """Live claims whose channels another partition assigned."""
    live = checkpoint.live_claims(boot_id)
    return tuple(sorted(str(claim) for claim in live if claim.partition != partition_id))


def report_delay(reported: Snapshot | None, snapshot: Snapshot, last_prepare: float, now: float) -> float:
    """How many seconds the report may wait: not at all unless claims were prepared and nothing else happened."""
    if reported is None or structs.replace(snapshot, prepares=reported.prepares) != reported:
        return 0.0
    return max(0.0, last_prepare + _GATHER - now) if snapshot.prepares != reported.prepares else 0.0


class NodeReporter:
    def __init__(
        self,
        client: Client,
        state: NodeState,
        prepared: PreparedClaims,
        clock: Clock,
        *,
        start_limit: float = _START_LIMIT,
        period: float = _PERIOD,
    ) -> None:
        self._client = client
        self._state = state
        self._prepared = prepared
        self._clock = clock
        self._start_limit = start_limit
        self._period = period
        self._backoff = Backoff(0.2, 10.0)
        self._written: NVLinkNode | None = None
        """The object as last seen; None: read it again."""
        self._read_at = 0.0
        self._valid_for = period
        """Seconds from `read_at` on."""
        self._reported: Snapshot | None = None
        """The snapshot that was reported last; None if the last report failed."""

    async def run(self) -> NoReturn:
        await self._wait_for_complete_snapshot()
        failures = 0
        while True:
            await self._gather_prepares()
            changed = self._state.changed
            pause = self._valid_for
            try:
                await self._write()
                failures = 0
            except ImexError as error:
                failures += 1
                pause = self._backoff.delay(failures)
                if not isinstance(error, Conflict):
                    log.warning("cannot write the NVLinkNode", error=str(error), retry_in=pause)
            await wait_any(changed, timeout=pause)

    async def _wait_for_complete_snapshot(self) -> None:
        """Otherwise every start would report, for a moment, that the node is not ready."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_limit):
                while not self._state.snapshot.is_complete:
                    await self._state.changed.wait()

    async def _gather_prepares(self) -> None:
        limit = self._clock.monotonic() + _GATHER_LIMIT
        while True:
            changed, now = self._state.changed, self._clock.monotonic()
            delay = report_delay(self._reported, self._state.snapshot, self._state.last_prepare, now)
            if delay <= 0 or now >= limit:
                return
            await wait_any(changed, timeout=min(delay, limit - now))

    async def _write(self) -> None:
        live = await self._current()
        self._written = self._reported = None
        self._restore_partition_id(live)
        snapshot = self._state.snapshot
        report = await asyncio.to_thread(make_report, self._prepared, snapshot, live.status, self._clock.now())
        self._state.update(foreign_claims=report.foreign_claims)
        self._written = await patch_changes(
            self._client, NVLINK_NODES, live, structs.replace(live, status=report.status), subresource="status"
        )
        if report.error is not None:
            raise report.error  # to try again soon
        self._reported = structs.replace(snapshot, foreign_claims=report.foreign_claims)

    async def _current(self) -> NVLinkNode:
        # The age counts, not how long nothing has changed: on a busy node something changes all the time.
        if self._written is not None and self._clock.monotonic() - self._read_at < self._valid_for:
            return self._written
        found = await read_nvlink_node(self._client, self._state.snapshot.node)
        self._read_at, self._valid_for = self._clock.monotonic(), jittered(self._period)
        return found

    def _restore_partition_id(self, live: NVLinkNode) -> None:
        """A program that starts while the fabric is broken learns the partition only from its last report."""
        snapshot = self._state.snapshot
        before = snapshot.partition_id or PartitionId(live.status.partition)
        self._state.update(partition_id=partition_of(snapshot.reading, before))


async def read_nvlink_node(client: Client, name: str) -> NVLinkNode:
    """Creates it if it does not exist."""
    try:
        return await client.get(NVLINK_NODES, Key("", name))
    except NotFound:
        pass
    node = await client.get(NODES, Key("", name))
    owner = OwnerReference("v1", "Node", name, node.metadata.uid)
    try:
        return await client.create(NVLINK_NODES, NVLinkNode(ObjectMeta(name=name, owner_references=(owner,))))
    except AlreadyExists:
        return await client.get(NVLINK_NODES, Key("", name))
