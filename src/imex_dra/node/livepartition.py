"""A partition's record as the API server has it now: what a node has watched may be old, and a grant must not be.

The first look begins with the kubelet's call, beside the claim's own read, so that it takes the pod no time. It
may only confirm a grant: what speaks against one is looked up again, because the assignment may have come since.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from imex_dra.api.meta import Key
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.waiting import ends_within
from imex_dra.kube.client import Client
from imex_dra.node.call import Call

_MOMENT = 0.2
"""Seconds in which a look that nobody needs any more may end by itself, with its connection as it should be."""


class LivePartition:
    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self._call = call
        self._early: asyncio.Task[NVLinkPartition | None] | None = None

    async def early(self) -> NVLinkPartition | None:
        """As of the call's beginning, if it was looked up then and nothing has stood in the way since."""
        early = self._early
        self.grow_old()
        return await early if early else None

    def grow_old(self) -> None:
        self._early = None

    async def now(self, name: str) -> NVLinkPartition | None:
        """None: there is none of this name."""
        with suppress(NotFound):
            return await self._call.ask(self._client.get(NVLINK_PARTITIONS, Key("", name)))
        return None

    @asynccontextmanager
    async def looking_ahead(self, name: str) -> AsyncIterator[None]:
        """With a first look on its way, which is not waited for in the end if it hangs."""
        self._early = look = asyncio.create_task(self._look(name))
        try:
            yield
        finally:
            await ends_within(_MOMENT, look)

    async def _look(self, name: str) -> NVLinkPartition | None:
        with suppress(ImexError):
            return await self.now(name)
        return None
