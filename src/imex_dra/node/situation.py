"""All that the node knows at this moment, and a way to wait until it knows something else."""

import asyncio
from typing import Any

from msgspec import structs

from imex_dra.node.readiness import Knowledge, place_of


class Situation:
    def __init__(self, node: str) -> None:
        self.known = Knowledge(node)
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Take it before looking at `known`, then wait on it: no change in between is missed."""
        return self._changed

    def learn(self, **facts: Any) -> None:
        if "reading" in facts:
            facts = {"place": place_of(facts["reading"], self.known.place), **facts}
        known = structs.replace(self.known, **facts)
        if known == self.known:
            return
        self.known = known
        announced, self._changed = self._changed, asyncio.Event()
        announced.set()
