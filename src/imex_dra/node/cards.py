"""Writes the node's card when it differs, and only then: nothing about a pod is a reason to write.

A recall is answered here: the ledger promises first, then the card says what is held.
"""

import asyncio
from contextlib import suppress
from typing import NoReturn

import structlog
from msgspec import structs

from imex_dra.api.meta import Key, ObjectMeta, OwnerReference
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.views import NODES
from imex_dra.base.errors import AlreadyExists, Conflict, ImexError, NotFound
from imex_dra.base.waiting import first_of
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.node.card import card_status, strangers
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.ledger import Ledger
from imex_dra.node.readiness import Knowledge, place_of
from imex_dra.node.situation import Situation

log = structlog.get_logger()

_PERIOD = 60.0
"""How often to look although nothing changed: somebody may have deleted the card."""
_PATIENCE = 5.0
"""How long a program that starts waits for its first look at the hardware and the agent's first word."""


class CardPublisher:
    def __init__(
        self,
        client: Client,
        situation: Situation,
        ledger: Ledger,
        *,
        address: str,
        patience: float = _PATIENCE,
    ) -> None:
        self._client = client
        self._situation = situation
        self._ledger = ledger
        self._address = address
        self._patience = patience
        self._backoff = Backoff(0.2, 10.0)
        self._written: NVLinkNode | None = None
        """The card as we last saw it; read again when a write failed, and now and then."""

    async def run(self) -> NoReturn:
        await self._look_first()
        failures = 0
        while True:
            changed = self._situation.changed
            pause = _PERIOD
            try:
                await self._write()
                failures = 0
            except ImexError as error:
                failures += 1
                pause = self._backoff.delay(failures)
                if not isinstance(error, Conflict):
                    log.warning("the node's card can't be written", error=str(error), retry_in=pause)
            await first_of(changed, timeout=pause)
            if not changed.is_set():
                self._written = None

    async def _look_first(self) -> None:
        """Or else every start would tell the partition, for a moment, that the node is not ready."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while not self._situation.known.has_looked:
                    await self._situation.changed.wait()

    async def _write(self) -> None:
        card = self._written or await self._read()
        self._written = None
        self._remember_place(card)
        known = self._situation.known  # one and the same for the promise and the card
        checkpoint = await asyncio.to_thread(promised, self._ledger, known)
        outsiders = strangers(checkpoint, known.reading.boot_id, known.place)
        self._situation.learn(strangers=outsiders)
        known = structs.replace(known, strangers=outsiders)
        status = card_status(known, self._address, checkpoint, card.status)
        self._written = await patch_changes(
            self._client, NVLINK_NODES, card, structs.replace(card, status=status), subresource="status"
        )

    def _remember_place(self, card: NVLinkNode) -> None:
        """A program that starts on a node whose fabric is broken knows from the card alone where the node is."""
        known = self._situation.known
        self._situation.learn(place=place_of(known.reading, known.place or PartitionId(card.status.partition)))

    async def _read(self) -> NVLinkNode:
        name = self._situation.known.node
        try:
            return await self._client.get(NVLINK_NODES, Key("", name))
        except NotFound:
            return await self._create(name)

    async def _create(self, name: str) -> NVLinkNode:
        node = await self._client.get(NODES, Key("", name))
        owner = OwnerReference("v1", "Node", name, node.metadata.uid)
        try:
            return await self._client.create(
                NVLINK_NODES, NVLinkNode(ObjectMeta(name=name, owner_references=(owner,)))
            )
        except AlreadyExists:
            return await self._client.get(NVLINK_NODES, Key("", name))


def promised(ledger: Ledger, known: Knowledge) -> Checkpoint:
    """Without a boot id nobody can say whose processes live, so nothing is answered."""
    if not known.place or not known.reading.boot_id:
        return ledger.read()
    return ledger.promise(known.place, known.home.status.recall if known.home else 0)
