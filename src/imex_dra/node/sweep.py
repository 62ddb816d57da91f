"""Claims that are gone without an unprepare: their pod was force-deleted, or the kubelet lost its memory.

Every prepared claim is compared with the API by name and UID; silence from the API proves nothing. Neither does
a claim that vanished prove that its process is gone: as long as the kubelet has it in its own record, it will
unprepare it once the containers have ended, and until then its channel is held.
"""

import asyncio
from pathlib import Path
from typing import NoReturn

import structlog

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.kube.client import Client
from imex_dra.node.checkpoint import PreparedClaim
from imex_dra.node.ledger import Ledger
from imex_dra.node.situation import Situation

log = structlog.get_logger()


KUBELET_RECORD = "dra_manager_state"
"""In the kubelet's directory: the claims that it holds, as JSON inside JSON. A UID that is in it is held."""


async def sweep_for_ever(
    client: Client, situation: Situation, ledger: Ledger, record: Path, *, period: float
) -> NoReturn:
    while True:
        checkpoint = await asyncio.to_thread(ledger.read)
        for claim in checkpoint.claims.values():
            if await _is_gone(client, claim) and not await asyncio.to_thread(_kubelet_holds, record, claim.uid):
                log.warning("unpreparing a claim that no longer exists", claim=f"{claim.namespace}/{claim.name}")
                after = await asyncio.to_thread(ledger.strike, claim.uid)
                situation.learn(unprepared=after.calls)
        await asyncio.sleep(period)


def _kubelet_holds(record: Path, uid: str) -> bool:
    try:
        return uid.encode() in record.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("the kubelet's record can't be read, so nothing is unprepared", error=str(error))
        return True


async def _is_gone(client: Client, claim: PreparedClaim) -> bool:
    try:
        live = await client.get(RESOURCE_CLAIMS, Key(claim.namespace, claim.name))
    except NotFound:
        return True
    except ImexError:
        return False
    return live.metadata.uid != claim.uid
