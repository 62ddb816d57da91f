"""Claims that are gone without an unprepare: their pod was force-deleted, or the kubelet lost its memory.

Every prepared claim is compared with the API by name and UID; silence from the API proves nothing.
"""

import asyncio
from typing import NoReturn

import structlog

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.kube.client import Client
from imex_dra.node.checkpoint import PreparedClaim
from imex_dra.node.ledger import Ledger

log = structlog.get_logger()


async def sweep_for_ever(client: Client, ledger: Ledger, *, period: float) -> NoReturn:
    while True:
        checkpoint = await asyncio.to_thread(ledger.read)
        for claim in checkpoint.claims.values():
            if await _is_gone(client, claim):
                log.warning("unpreparing a claim that no longer exists", claim=f"{claim.namespace}/{claim.name}")
                await asyncio.to_thread(ledger.strike, claim.uid)
        await asyncio.sleep(period)


async def _is_gone(client: Client, claim: PreparedClaim) -> bool:
    try:
        live = await client.get(RESOURCE_CLAIMS, Key(claim.namespace, claim.name))
    except NotFound:
        return True
    except ImexError:
        return False
    return live.metadata.uid != claim.uid
