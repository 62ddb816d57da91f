"""While a prepare waits, its ComputeDomain may go: then no wait can bring the claim a channel any more.

Only a prepare that waits watches, and only its own ComputeDomain.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.base.errors import Rejected
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.claims import Wish
from imex_dra.node.grants import expect_domain


class Departure:
    def __init__(self, wish: Wish) -> None:
        self.seen = asyncio.Event()
        self._wish = wish
        self._verdict: Rejected | None = None

    def look(self, domain: ComputeDomain | None) -> None:
        try:
            expect_domain(self._wish, [domain] if domain else [])
        except Rejected as verdict:
            self._verdict = verdict
            self.seen.set()

    def check(self) -> None:
        """Raises what the wait has to end with, if it has to."""
        if self._verdict is not None:
            raise self._verdict


@asynccontextmanager
async def watching(client: Client, wish: Wish, name: Key) -> AsyncIterator[Departure]:
    departure = Departure(wish)
    store: Store[ComputeDomain] = Store()
    store.subscribe(lambda old, new: departure.look(new))
    reflector = Reflector(
        client, COMPUTE_DOMAINS, store, selection=Selection(name.namespace, fields=f"metadata.name={name.name}")
    )
    tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(_look_once(reflector, store, departure))]
    try:
        yield departure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _look_once(
    reflector: Reflector[ComputeDomain], store: Store[ComputeDomain], departure: Departure
) -> None:
    """One that went before the watch began is never heard of as gone."""
    await reflector.synced.wait()
    if not len(store):
        departure.look(None)
