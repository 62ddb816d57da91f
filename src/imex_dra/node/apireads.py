"""What a prepare reads from the API server, within the deadline of its call. See docs/design/prepare.md."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, TypeVar

from imex_dra.api.claimreasons import api_unreachable
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.clock import Clock
from imex_dra.base.errors import (
    ApiRetryable,
    Forbidden,
    ImexError,
    NotFound,
    NotYet,
    Rejected,
    TooManyRequests,
)
from imex_dra.base.waiting import wait_or_cancel
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.claim import ChannelRequest
from imex_dra.node.grant import find_domain

R = TypeVar("R")

_LAST_ATTEMPT = 1.0
"""Seconds before the deadline at which a read is tried for the last time."""

_LAST_LOOK = 3.0
"""Seconds for the read after the deadline (`PrepareDeadline.last_call`)."""

_PREFETCH_GRACE = 0.2
"""Seconds in which a prefetch that is no longer needed may finish, so that its connection can be reused."""


class PrepareDeadline:
    """How much time one prepare call has left, and API reads that respect it.

    A read that the API server refuses for the moment (429), fails (5xx) or does not answer is repeated until the
    deadline: the kubelet would repeat a failed call only after 60 to 90 s.
    """

    def __init__(self, claim: ClaimId, node: str, clock: Clock, *, limit: float) -> None:
        self.claim = claim
        self._node = node
        self._clock = clock
        self._limit = limit
        self._start = clock.monotonic()
        self._backoff = Backoff(0.2, 5.0)
        self._last_error: ImexError | None = None

    def elapsed(self) -> float:
        return self._clock.monotonic() - self._start

    def remaining(self) -> float:
        return max(0.0, self._limit - self.elapsed())

    async def call(self, request: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """`request` must not retry by itself (`Client.without_retries`): its last error would be lost."""
        for failures in count(1):
            try:
                async with asyncio.timeout(self.remaining()):
                    return await request()
            except (ApiRetryable, Forbidden, TimeoutError) as error:
                self._last_error = error if isinstance(error, ImexError) else self._last_error
                remaining = self.remaining()
                if not isinstance(error, ApiRetryable) or remaining <= _LAST_ATTEMPT:
                    raise self._unreachable() from error
                # Not longer than until a last attempt, even if the server asks for it: one request too early costs
                # the server little, a failed prepare costs the pod a minute.
                delay = _retry_after(error) + self._backoff.delay(failures)
                await asyncio.sleep(min(delay, remaining - _LAST_ATTEMPT))
        raise AssertionError("unreachable")

    async def last_call(self, request: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """After the deadline, once: the kubelet waits a little longer."""
        try:
            async with asyncio.timeout(_LAST_LOOK):
                return await request()
        except (ApiRetryable, Forbidden, TimeoutError) as error:
            self._last_error = error if isinstance(error, ImexError) else None
            raise self._unreachable() from error

    def _unreachable(self) -> NotYet:
        cause = str(self._last_error or "no answer in time")
        unreachable = api_unreachable(node=self._node, claim=str(self.claim), cause=cause)
        return unreachable.error(NotYet, self.elapsed())


def _retry_after(error: ApiRetryable) -> float:
    return error.retry_after if isinstance(error, TooManyRequests) else 0.0


class LivePartition:
    """The NVLinkPartition as the API server has it now.

    The prefetch starts with the kubelet's call, in parallel with the read of the claim, so that it costs the pod
    no time. It may only confirm a grant: if it shows none, the assignment may have been made since, and the
    partition is fetched again.
    """

    def __init__(self, client: Client, deadline: PrepareDeadline) -> None:
        self._client = client.without_retries()
        self._deadline = deadline
        self._prefetch: asyncio.Task[NVLinkPartition | None] | None = None

    async def prefetched(self) -> NVLinkPartition | None:
        """Once, and only if nothing has delayed the prepare since."""
        prefetch = self._prefetch
        self.discard()
        return await prefetch if prefetch else None

    def discard(self) -> None:
        self._prefetch = None

    async def fetch(self, name: str) -> NVLinkPartition | None:
        with suppress(NotFound):
            return await self._deadline.call(lambda: self._client.get(NVLINK_PARTITIONS, Key("", name)))
        return None

    async def last_look(self, name: str) -> NVLinkPartition | None:
        """At the end of a call that has found no grant."""
        with suppress(NotFound):
            return await self._deadline.last_call(lambda: self._client.get(NVLINK_PARTITIONS, Key("", name)))
        return None

    @asynccontextmanager
    async def prefetching(self, name: str) -> AsyncIterator[None]:
        self._prefetch = prefetch = asyncio.create_task(self._fetch_quietly(name))
        try:
            yield
        finally:
            await wait_or_cancel(_PREFETCH_GRACE, prefetch)

    async def _fetch_quietly(self, name: str) -> NVLinkPartition | None:
        with suppress(ImexError):
            return await self.fetch(name)
        return None


class DomainWatch:
    """The request's ComputeDomain while a prepare waits. Its deletion or refusal ends the wait: no channel can
    come any more.
    """

    def __init__(self, request: ChannelRequest) -> None:
        self.domain: ComputeDomain | None = None
        self._request = request
        self._error: Rejected | None = None
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change. Take it before reading `domain`, as with `NodeState.changed`."""
        return self._changed

    def observe(self, domain: ComputeDomain | None) -> None:
        self.domain = domain
        try:
            find_domain(self._request, [domain] if domain else [])
        except Rejected as error:
            self._error = error
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def check(self) -> None:
        """Raises Rejected if no channel can come any more."""
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def watch_domain(client: Client, request: ChannelRequest, name: Key) -> AsyncIterator[DomainWatch]:
    watch = DomainWatch(request)
    store: Store[ComputeDomain] = Store()
    store.subscribe(lambda old, new: watch.observe(new))
    selection = Selection(name.namespace, fields=f"metadata.name={name.name}")
    reflector = Reflector(client, COMPUTE_DOMAINS, store, selection=selection)

    async def check_first_list() -> None:
        # A ComputeDomain that was deleted before the watch began causes no event.
        await reflector.synced.wait()
        if not len(store):
            watch.observe(None)

    tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(check_first_list())]
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
