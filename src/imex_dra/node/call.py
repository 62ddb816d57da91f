"""One call of the kubelet: how much of its time is left, and requests that keep to it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from imex_dra.api.reasons import Reason, sentence
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ApiRetryable, Forbidden, NotYet
from imex_dra.dra.plugin import ClaimId

R = TypeVar("R")


class Call:
    def __init__(self, claim: ClaimId, node: str, clock: Clock, *, limit: float) -> None:
        self.claim = claim
        self._node = node
        self._clock = clock
        self._limit = limit
        self._start = clock.monotonic()

    def taken(self) -> float:
        return self._clock.monotonic() - self._start

    def left(self) -> float:
        return max(0.0, self._limit - self.taken())

    async def ask(self, request: Coroutine[Any, Any, R]) -> R:
        """The API server's answer, or NotYet, which says who was not reached."""
        try:
            async with asyncio.timeout(self.left()):
                return await request
        except (ApiRetryable, Forbidden, TimeoutError) as error:
            cause = str(error) or "no answer in time"
            facts = {"node": self._node, "claim": self.claim, "cause": cause}
            raise NotYet(sentence(Reason.API_UNREACHABLE, **facts)) from error
