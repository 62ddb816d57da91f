"""Events: told once, then counted.

The same thing said about the same object again within the window becomes a series on the first Event,
written at most once per `quiet` seconds, so that a failing loop can't flood the API server. Telling never
blocks and never fails the teller: when the API server can't take Events, the oldest wait in a bounded line
and the rest are dropped.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from imex_dra.api.meta import Key, Object, ObjectMeta, Resource, key_of
from imex_dra.api.reasons import Reason
from imex_dra.api.views import EVENTS, Event, EventSeries, ObjectReference
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, ImexError
from imex_dra.kube.client import Client

log = structlog.get_logger()

_MAX_NOTE = 1024
"""Bytes, not characters."""

_MAX_WAITING = 1000


@dataclass(slots=True)
class _Told:
    key: Key
    first: float
    count: int = 1
    written: float = 0.0


class EventRecorder:
    def __init__(
        self, client: Client, instance: str, clock: Clock, *, window: float = 600.0, quiet: float = 30.0
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._window = window
        self._quiet = quiet
        self._told: dict[str, _Told] = {}
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(_MAX_WAITING)

    def warn(self, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        self._tell("Warning", resource, obj, reason, message)

    def note(self, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        self._tell("Normal", resource, obj, reason, message)

    async def run(self) -> NoReturn:
        while True:
            await self._write(await self._waiting.get())
            self._waiting.task_done()

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    async def flush(self) -> None:
        """Returns when everything told so far was written or given up."""
        await self._waiting.join()

    def _tell(self, kind: str, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        now = self._clock.monotonic()
        identity = f"{obj.metadata.uid}/{kind}/{reason}/{message}"
        self._forget_before(now - self._window)
        told = self._told.get(identity)
        if told is None:
            event = self._event(kind, resource, obj, reason, message)
            if self._enqueue(event):
                self._told[identity] = _Told(key_of(event), first=now, written=now)
            return
        told.count += 1
        if now - told.written >= self._quiet:
            told.written = now
            self._enqueue(self._series(told))

    def _forget_before(self, moment: float) -> None:
        """The dict is in the order of telling, so the old ones are in front."""
        while self._told and (oldest := next(iter(self._told.items())))[1].first <= moment:
            del self._told[oldest[0]]

    def _forget(self, key: Key) -> None:
        """It is not on the server, so the next time it is told anew."""
        self._told = {identity: told for identity, told in self._told.items() if told.key != key}

    def _event(self, kind: str, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> Event:
        key, now = key_of(obj), self._clock.now()
        suffix = hashlib.sha256(f"{obj.metadata.uid}{reason}{message}{now}".encode()).hexdigest()[:16]
        return Event(
            metadata=ObjectMeta(name=f"{key.name[:230]}.{suffix}", namespace=key.namespace or "default"),
            event_time=rfc3339_micro(now),
            reporting_controller=f"imex-dra.io/{self._client.field_manager}",
            reporting_instance=self._instance,
            action=reason,
            reason=reason,
            regarding=ObjectReference(
                api_version=resource.api_version,
                kind=resource.kind,
                namespace=key.namespace,
                name=key.name,
                uid=obj.metadata.uid,
            ),
            note=_shortened(message),
            type=kind,
        )

    def _series(self, told: _Told) -> Event:
        return Event(
            metadata=ObjectMeta(name=told.key.name, namespace=told.key.namespace),
            series=EventSeries(count=told.count, last_observed_time=rfc3339_micro(self._clock.now())),
        )

    def _enqueue(self, event: Event) -> bool:
        try:
            self._waiting.put_nowait(event)
            return True
        except asyncio.QueueFull:
            log.debug("an Event was dropped, too many wait already", reason=event.reason, note=event.note)
            return False

    async def _write(self, event: Event) -> None:
        try:
            if event.series is None:
                await self._client.create(EVENTS, event)
            else:
                series = {"count": event.series.count, "lastObservedTime": event.series.last_observed_time}
                await self._client.patch(EVENTS, key_of(event), {"series": series})
        except AlreadyExists:
            pass
        except ImexError as error:
            self._forget(key_of(event))
            log.warning("an Event could not be written", reason=event.reason, note=event.note, error=str(error))


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MAX_NOTE:
        return message
    return encoded[: _MAX_NOTE - 3].decode(errors="ignore") + "..."
