"""Leader election on a Lease: at most one replica works at a time.

The holder renews the Lease. Every other candidate measures, on its own monotonic clock, how long the Lease stays
unchanged, because the clocks of two machines need not agree. A candidate may take over `lease_duration` seconds
after it first saw the current version, and it cannot see a renewal before the holder sent it. Therefore the
holder stops its work when it has not renewed for `renew_deadline` seconds, counted from the moment it *sent* the
last successful renewal. `renew_deadline` is shorter than `lease_duration`; the difference is the time that the
work has to stop before another candidate may start.

If the Lease is deleted, the holder stops, and candidates that have seen it still wait for it to expire. Only a
candidate that starts later cannot know of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog

from imex_dra.api.meta import Key, ObjectMeta, OwnerReference
from imex_dra.api.views import LEASES, Lease, LeaseSpec
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, Conflict, ImexError, NotFound, Retryable
from imex_dra.kube.backoff import jittered
from imex_dra.kube.client import Client

log = structlog.get_logger()

_RESOLUTION = 0.001
"""Seconds. A timer may fire slightly early: a deadline that is closer than this has passed."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; the same defaults as client-go."""

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0


class LostLeadership(Retryable):
    pass


class LeaderElection:
    def __init__(
        self,
        client: Client,
        key: Key,
        identity: str,
        clock: Clock,
        timing: Timing | None = None,
        *,
        owners: Callable[[], Awaitable[tuple[OwnerReference, ...]]] | None = None,
    ) -> None:
        """`owners`: of a Lease that does not exist yet."""
        self._client = client
        self._key = key
        self._identity = identity
        self._clock = clock
        self._timing = timing or Timing()
        self._owners = owners
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self.problem = "the Lease has not been read yet"
        """Why this candidate could not read or renew the Lease last; empty if it could."""
        self._log = log.bind(lease=str(key), identity=identity)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for leadership, then runs the work. Raises LostLeadership if the work had to be stopped."""
        renewed = await self._acquire()
        self._log.info("became leader")
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew_forever(renewed))
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                # The work first: renewal must go on until it has stopped.
                await _stop(working)
            finally:
                failure = await _stop(renewing)
            if not isinstance(failure, LostLeadership):
                await self._release()
        if failure is not None and working.cancelled():
            raise failure
        await working

    async def _acquire(self) -> float:
        """Returns when the write was sent that made us the holder."""
        while True:
            try:
                # After a slow response the Lease may already have expired: acquire it again.
                sent = await self._try_acquire()
                self.problem = ""
                if sent is not None and self._clock.monotonic() - sent < self._timing.renew_deadline:
                    return sent
            except ImexError as error:
                self.problem = str(error)
                self._log.warning("could not try to acquire the Lease", error=str(error))
            await asyncio.sleep(jittered(self._timing.retry_period))

    async def _try_acquire(self) -> float | None:
        try:
            self._observe(await self._client.get(LEASES, self._key))
            write = self._update
        except NotFound:
            write = self._create
        sent = self._clock.monotonic()
        return sent if self._is_available() and await write() else None

    async def _update(self) -> bool:
        return await self._write(self._spec(acquiring=True))

    async def _create(self) -> bool:
        owners = await self._owners() if self._owners else ()
        meta = ObjectMeta(name=self._key.name, namespace=self._key.namespace, owner_references=owners)
        lease = Lease(meta, self._spec(acquiring=True))
        try:
            self._observe(await self._client.create(LEASES, lease))
        except AlreadyExists:
            return False
        return True

    async def _renew_forever(self, renewed: float) -> None:
        """Raises LostLeadership when the renew deadline has passed or the Lease is lost."""
        while True:
            expires = renewed + self._timing.renew_deadline
            await asyncio.sleep(min(self._timing.retry_period, max(0.0, expires - self._clock.monotonic())))
            sent = self._clock.monotonic()
            remaining = expires - sent
            if remaining < _RESOLUTION:
                raise LostLeadership(f"Lease {self._key}: not renewed for {self._timing.renew_deadline:g} s")
            try:
                async with asyncio.timeout(remaining):
                    if await self._renew():
                        renewed = sent
                        self.problem = ""
            except TimeoutError:
                continue
            except LostLeadership:
                raise
            except NotFound:
                raise LostLeadership(f"Lease {self._key} was deleted") from None
            except ImexError as error:
                self.problem = str(error)
                self._log.warning("could not renew the Lease", error=str(error))

    async def _renew(self) -> bool:
        if await self._write(self._spec(acquiring=False)):
            return True
        self._observe(await self._client.get(LEASES, self._key))
        assert self._seen is not None
        holder = self._seen.spec.holder_identity
        if holder != self._identity:
            now = f"held by {holder}" if holder else "released"
            raise LostLeadership(f"Lease {self._key} is {now}, not held by {self._identity}")
        return False

    async def _release(self) -> None:
        """Lets the next candidate start at once. If this fails, it has to wait until the Lease expires."""
        spec = msgspec.structs.replace(self._spec(acquiring=False), holder_identity="", lease_duration_seconds=1)
        try:
            async with asyncio.timeout(self._timing.retry_period):
                await self._write(spec)
        except (ImexError, TimeoutError) as error:
            self._log.info("could not release the Lease, it will expire", error=str(error))

    async def _write(self, spec: LeaseSpec) -> bool:
        """False if the Lease has changed since it was last seen."""
        assert self._seen is not None
        # A view omits empty fields, but a released Lease must show that it has no holder.
        fields = {"holderIdentity": "", **msgspec.to_builtins(spec)}
        patch = {"metadata": {"resourceVersion": self._seen.metadata.resource_version}, "spec": fields}
        try:
            self._observe(await self._client.patch(LEASES, self._key, patch))
        except Conflict:
            return False
        return True

    def _observe(self, lease: Lease) -> None:
        if self._seen is None or lease.metadata.resource_version != self._seen.metadata.resource_version:
            self._seen, self._seen_at = lease, self._clock.monotonic()

    def _is_available(self) -> bool:
        if self._seen is None:
            return True
        spec = self._seen.spec
        unchanged = self._clock.monotonic() - self._seen_at
        return spec.holder_identity in ("", self._identity) or unchanged > spec.lease_duration_seconds

    def _spec(self, *, acquiring: bool) -> LeaseSpec:
        now = rfc3339_micro(self._clock.now())
        last = self._seen.spec if self._seen else LeaseSpec()
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._timing.lease_duration,
            acquire_time=now if acquiring else last.acquire_time,
            renew_time=now,
            lease_transitions=last.lease_transitions + (1 if acquiring and self._seen else 0),
        )


async def _stop(task: asyncio.Future[None]) -> BaseException | None:
    """Cancels the task and waits until it has ended, even if the caller is cancelled meanwhile.

    Returns the exception of a task that failed by itself.
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
