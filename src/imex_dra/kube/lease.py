"""Leader election on a Lease: of all replicas at most one works.

A holder renews; everybody else watches how long the record stays unchanged, by their own monotonic clock,
because the clocks of two machines need not agree. A rival may take over `duration` seconds after it first saw
the record as it is, and it can't see a renewal before it was sent. So a holder that could not renew for
`deadline` seconds since it *sent* its last good renewal stops; `deadline` is shorter than `duration`, and the
difference is the time its work has to end before anybody else may start. A Lease that somebody deleted still
binds whoever has seen it, and ends its holder's work; only a candidate that came later can't know of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog

from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.views import LEASES, Lease, LeaseSpec
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, Conflict, ImexError, NotFound, Retryable
from imex_dra.kube.client import Client

log = structlog.get_logger()

_TICK = 0.001
"""A clock may stop this short of a deadline, so that closer than this counts as passed."""


@dataclass(frozen=True, slots=True)
class Timing:
    duration: int = 15
    deadline: float = 10.0
    period: float = 2.0


class LostLeadership(Retryable):
    pass


class LeaderElection:
    def __init__(
        self, client: Client, key: Key, identity: str, clock: Clock, timing: Timing | None = None
    ) -> None:
        self._client = client
        self._key = key
        self._identity = identity
        self._clock = clock
        self._timing = timing or Timing()
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._log = log.bind(lease=str(key), identity=identity)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for leadership, then works until the work ends; LostLeadership if it had to stop before."""
        renewed = await self._acquire()
        self._log.info("leading")
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew_for_ever(renewed))
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await _end(working)
            finally:
                trouble = await _end(renewing)
            if not isinstance(trouble, LostLeadership):
                await self._release()
        if trouble is not None and working.cancelled():
            raise trouble
        await working

    async def _acquire(self) -> float:
        """When the write was sent that made us the holder. One whose answer came too late is made again."""
        while True:
            try:
                sent = await self._take()
                if sent is not None and self._clock.monotonic() - sent < self._timing.deadline:
                    return sent
            except ImexError as error:
                self._log.warning("can't take part in the election", error=str(error))
            await asyncio.sleep(self._timing.period)

    async def _take(self) -> float | None:
        try:
            self._observe(await self._client.get(LEASES, self._key))
            write = self._rewrite
        except NotFound:
            write = self._create
        sent = self._clock.monotonic()
        return sent if self._is_free() and await write() else None

    async def _rewrite(self) -> bool:
        return await self._write(self._record(taking=True))

    async def _create(self) -> bool:
        lease = Lease(ObjectMeta(name=self._key.name, namespace=self._key.namespace), self._record(taking=True))
        try:
            self._observe(await self._client.create(LEASES, lease))
        except AlreadyExists:
            return False
        return True

    async def _renew_for_ever(self, renewed: float) -> None:
        """Ends with LostLeadership, when the deadline passed or somebody else holds the Lease."""
        while True:
            expires = renewed + self._timing.deadline
            await asyncio.sleep(min(self._timing.period, max(0.0, expires - self._clock.monotonic())))
            sent = self._clock.monotonic()
            remaining = expires - sent
            if remaining < _TICK:
                raise LostLeadership(f"Lease {self._key}: not renewed for {self._timing.deadline:g} s")
            try:
                async with asyncio.timeout(remaining):
                    if await self._renew():
                        renewed = sent
            except TimeoutError:
                continue
            except LostLeadership:
                raise
            except NotFound:
                raise LostLeadership(f"Lease {self._key} was deleted") from None
            except ImexError as error:
                self._log.warning("renewing failed", error=str(error))

    async def _renew(self) -> bool:
        if await self._write(self._record(taking=False)):
            return True
        self._observe(await self._client.get(LEASES, self._key))
        assert self._seen is not None
        holder = self._seen.spec.holder_identity
        if holder != self._identity:
            raise LostLeadership(f"Lease {self._key} is held by {holder or 'nobody'} now")
        return False

    async def _release(self) -> None:
        """Lets a rival start at once; failing to do so only costs it the wait."""
        record = msgspec.structs.replace(self._record(taking=False), holder_identity="", lease_duration_seconds=1)
        try:
            async with asyncio.timeout(self._timing.period):
                await self._write(record)
        except (ImexError, TimeoutError) as error:
            self._log.info("the Lease was not released and will run out", error=str(error))

    async def _write(self, record: LeaseSpec) -> bool:
        """False if the Lease has changed since it was seen."""
        assert self._seen is not None
        spec = {"holderIdentity": "", **msgspec.to_builtins(record)}
        patch = {"metadata": {"resourceVersion": self._seen.metadata.resource_version}, "spec": spec}
        try:
            self._observe(await self._client.patch(LEASES, self._key, patch))
        except Conflict:
            return False
        return True

    def _observe(self, lease: Lease) -> None:
        if self._seen is None or lease.metadata.resource_version != self._seen.metadata.resource_version:
            self._seen, self._seen_at = lease, self._clock.monotonic()

    def _is_free(self) -> bool:
        if self._seen is None:
            return True
        spec = self._seen.spec
        unchanged = self._clock.monotonic() - self._seen_at
        return spec.holder_identity in ("", self._identity) or unchanged > spec.lease_duration_seconds

    def _record(self, *, taking: bool) -> LeaseSpec:
        now = rfc3339_micro(self._clock.now())
        last = self._seen.spec if self._seen else LeaseSpec()
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._timing.duration,
            acquire_time=now if taking else last.acquire_time,
            renew_time=now,
            lease_transitions=last.lease_transitions + (1 if taking and self._seen else 0),
        )


async def _end(task: asyncio.Future[None]) -> BaseException | None:
    """Cancels the task and waits until it has really stopped, even if we are cancelled meanwhile.

    Returns what it died of, if it was not our doing.
    """
    task.cancel()
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return None if task.cancelled() else task.exception()
