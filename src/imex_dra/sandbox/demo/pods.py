"""The demo's pods: when they run, what they said, and what became of their claims."""

import asyncio
from collections.abc import Callable

import msgspec

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.sandbox.demo import checks
from imex_dra.sandbox.demo.memory import Word
from imex_dra.sandbox.demo.report import ClaimRow
from imex_dra.sandbox.demo.venue import Venue
from imex_dra.sandbox.demo.workloads import NAMESPACE

_STARTED = ("Running", "Succeeded", "Failed")
_LOOK = 0.3


class Pods:
    def __init__(self, venue: Venue, within: float) -> None:
        self._venue = venue
        self._within = within

    async def running(self, name: str) -> None:
        if not await self._until(lambda: self.phase(name) in _STARTED):
            raise NotYet(
                f"pod {name} did not start within {self._within:.0f} s: {await self._venue.why(NAMESPACE, name)}"
            )

    def phase(self, name: str) -> str:
        pod = self._venue.watching.pods.get(Key(NAMESPACE, name))
        return pod.status.phase if pod else ""

    async def said(self, name: str, lines: int) -> str:
        """The first lines of its output, as soon as they are there."""
        await self.running(name)
        try:
            async with asyncio.timeout(self._within):
                return await self._first_lines(name, lines)
        except TimeoutError:
            raise NotYet(f"pod {name} said less than {lines} lines in {self._within:.0f} s") from None

    async def _first_lines(self, name: str, lines: int) -> str:
        while True:
            ended = self.phase(name) != "Running"
            text = await self._venue.ask("-n", NAMESPACE, "logs", name)
            if text.count("\n") >= lines or ended:
                return "\n".join(text.splitlines()[:lines])
            await asyncio.sleep(_LOOK)

    async def word(self, name: str) -> Word:
        said = await self.said(name, lines=1)
        try:
            return msgspec.json.decode(said, type=Word)
        except msgspec.MsgspecError:
            raise Rejected(f"pod {name} did not say what it should: {said or 'nothing'}") from None

    async def claim(self, name: str) -> ClaimRow:
        """As it was while the pod had it, with the channel that it came to."""
        await self._until(lambda: any(row.channel is not None for row in self._claims(name)))
        if not (found := self._claims(name)):
            raise NotYet(f"no claim of pod {name} was seen reserved for it")
        return found[0]

    def _claims(self, pod: str) -> list[ClaimRow]:
        partitions = self._venue.watching.partitions.values()
        return [checks.row(claim, partitions) for claim in self._venue.claims.values() if pod in claim.pods]

    async def _until(self, condition: Callable[[], bool]) -> bool:
        return await self._venue.watching.until(lambda seen: condition(), within=self._within)
