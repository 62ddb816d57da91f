"""The demo's pods: wait for them, and read their output and their claims."""

import asyncio
from collections.abc import Callable

import msgspec

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotYet, Rejected
from imex_sandbox.demo import checks
from imex_sandbox.demo.cluster import DemoCluster
from imex_sandbox.demo.report import ClaimRow
from imex_sandbox.demo.sharedmemory import MemoryResult
from imex_sandbox.demo.workloads import NAMESPACE

_STARTED = ("Running", "Succeeded", "Failed")
_PERIOD = 0.3


class Pods:
    def __init__(self, cluster: DemoCluster, within: float) -> None:
        self._cluster = cluster
        self._within = within

    async def output(self, name: str, lines: int) -> str:
        """The first lines of a pod's log, as soon as they are there."""
        await self._wait_until_started(name)
        try:
            async with asyncio.timeout(self._within):
                return await self._first_lines(name, lines)
        except TimeoutError:
            raise NotYet(f"pod {name} printed less than {lines} lines in {self._within:.0f} s") from None

    async def memory_result(self, name: str) -> MemoryResult:
        output = await self.output(name, lines=1)
        try:
            return msgspec.json.decode(output, type=MemoryResult)
        except msgspec.MsgspecError:
            raise Rejected(f"pod {name} printed no result but: {output or 'nothing'}") from None

    async def claim(self, name: str) -> ClaimRow:
        """The claim of a pod, with its channel, as it was while it was reserved for the pod."""
        await self._until(lambda: any(row.channel is not None for row in self._claims(name)))
        if not (found := self._claims(name)):
            raise NotYet(f"no claim was reserved for pod {name}")
        return found[0]

    async def _wait_until_started(self, name: str) -> None:
        if not await self._until(lambda: self._phase(name) in _STARTED):
            event = await self._cluster.last_event(NAMESPACE, name)
            raise NotYet(f"pod {name} did not start within {self._within:.0f} s: {event}")

    async def _first_lines(self, name: str, lines: int) -> str:
        while True:
            # Before the log is read: the log of a pod that has ended is complete.
            ended = self._phase(name) != "Running"
            text = await self._cluster.kubectl("-n", NAMESPACE, "logs", name)
            if text.count("\n") >= lines or ended:
                return "\n".join(text.splitlines()[:lines])
            await asyncio.sleep(_PERIOD)

    def _phase(self, name: str) -> str:
        pod = self._cluster.watching.pods.get(Key(NAMESPACE, name))
        return pod.status.phase if pod else ""

    def _claims(self, pod: str) -> list[ClaimRow]:
        partitions = self._cluster.watching.partitions.values()
        return [
            checks.claim_row(claim, partitions) for claim in self._cluster.claims.values() if pod in claim.pods
        ]

    async def _until(self, condition: Callable[[], bool]) -> bool:
        return await self._cluster.watching.until(lambda observed: condition(), within=self._within)
