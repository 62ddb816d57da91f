"""Repairs the node's disk: what unprepare calls, reloads of the GPU driver and kills have left behind.

The sweep compares all that is prepared with the API server and the kubelet, again and again, so that no leftover
depends on an event that was missed:

- A claim that no pod uses is unprepared. After a forced deletion or a lost kubelet state no unprepare call comes.
- A CDI spec without a checkpoint entry is removed, and the missing spec of a live claim is written again.

An API error proves nothing. A claim without a pod does not prove that its process has ended either: as long as the
kubelet's own checkpoint lists the claim, the kubelet will unprepare it after its containers have ended, and until
then its channel is held. A missing checkpoint lists nothing that we could rely on. After a reboot no process is
left, whatever the kubelet lists.

The kubelet's list is asked first: it is a local file, and usually it lists every claim.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import structlog

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.waiting import wait_any
from imex_dra.kube.backoff import Backoff, jittered
from imex_dra.kube.client import Client
from imex_dra.node.checkpoint import PreparedClaim
from imex_dra.node.prepared import PreparedClaims
from imex_dra.node.state import NodeState

log = structlog.get_logger()

_START_LIMIT = 5.0
"""Seconds that a starting program waits for its first hardware reading."""

KUBELET_CHECKPOINT = "dra_manager_state"
"""In the kubelet's directory: JSON inside JSON. A claim is listed if its UID occurs in the file."""


async def sweep_forever(
    client: Client, state: NodeState, prepared: PreparedClaims, kubelet_checkpoint: Path, *, period: float
) -> NoReturn:
    await _wait_for_boot_id(state)
    while True:
        try:
            await _sweep(client, state, prepared, kubelet_checkpoint)
        except ImexError as error:
            log.warning("what is prepared cannot be checked", error=str(error), retry_in=period)
        await asyncio.sleep(jittered(period))


async def _wait_for_boot_id(state: NodeState) -> None:
    """Without it the first sweep could not tell what a reboot has ended, and the next one comes much later."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_LIMIT):
            while not state.snapshot.reading.boot_id:
                await state.changed.wait()


async def _sweep(client: Client, state: NodeState, prepared: PreparedClaims, kubelet_checkpoint: Path) -> None:
    await asyncio.to_thread(prepared.remove_orphans)
    checkpoint = await asyncio.to_thread(prepared.read)
    for claim in checkpoint.claims.values():
        rebooted = state.snapshot.reading.boot_id not in ("", claim.boot_id)

        def is_used(claim: PreparedClaim = claim, rebooted: bool = rebooted) -> bool:
            return not rebooted and _kubelet_may_use(kubelet_checkpoint, claim.uid)

        if await asyncio.to_thread(is_used) or await _is_needed(client, claim, state.snapshot.node):
            continue
        # Asked again under the lock: the kubelet may have begun to use the claim meanwhile.
        after = await asyncio.to_thread(prepared.remove_unless, claim.uid, is_used)
        if after is not None:
            log.warning("unprepared a claim that no pod uses", claim=str(claim))
            state.update(unprepare_sequence=after.unprepare_sequence)
    if boot_id := state.snapshot.reading.boot_id:
        await asyncio.to_thread(prepared.rewrite_specs, boot_id)


async def follow_driver(state: NodeState, prepared: PreparedClaims) -> NoReturn:
    """Rewrites the CDI specs when the GPU driver was loaded again with another device major: the kubelet does not
    prepare a claim again, but the next container of its pod needs the new number.
    """
    backoff, failures, written = Backoff(0.2, 10.0), 0, 0
    while True:
        changed, reading, pause = state.changed, state.snapshot.reading, None
        if reading.boot_id and reading.channel_major not in (0, written):
            try:
                await asyncio.to_thread(prepared.rewrite_specs, reading.boot_id)
                written, failures = reading.channel_major, 0
            except ImexError as error:
                failures += 1
                pause = backoff.delay(failures)
                log.warning("the CDI specs cannot be rewritten", error=str(error), retry_in=pause)
        await wait_any(changed, timeout=pause)


def _kubelet_may_use(kubelet_checkpoint: Path, uid: str) -> bool:
    try:
        with kubelet_checkpoint.open("rb") as file:
            # The kubelet replaces the file. A container into which the file is mounted, and not its directory,
            # sees the old one forever; by then it has no name.
            if os.fstat(file.fileno()).st_nlink == 0:
                raise OSError(f"{kubelet_checkpoint} was replaced: mount its directory instead of the file")
            return uid.encode() in file.read()
    except OSError as error:
        log.warning("cannot read the kubelet's checkpoint, so nothing is unprepared", error=str(error))
        return True


async def _is_needed(client: Client, claim: PreparedClaim, node: str) -> bool:
    """Whether the claim is allocated on this node and reserved for a pod, as far as the API server tells."""
    try:
        live = await client.get(RESOURCE_CLAIMS, Key(claim.namespace, claim.name))
    except NotFound:
        return False
    except ImexError:
        return True
    return live.metadata.uid == claim.uid and node in live.nodes and bool(live.status.reserved_for)
