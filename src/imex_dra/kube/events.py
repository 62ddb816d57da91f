"""Records Kubernetes Events without flooding the API server.

The first occurrence creates an Event. The same Event again within `window` seconds becomes a series on the first
one, and the series is written at most every `series_interval` seconds.

Recording never blocks and never fails: Events wait in a bounded queue, and when the queue is full, new ones are
dropped. One namespace can create only a part of that number within `window` seconds, so that it can neither fill
the queue nor keep the Events of other namespaces out.
"""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from imex_dra.api.meta import Key, Object, ObjectMeta, Resource, key_of
from imex_dra.api.reasons import Reason
from imex_dra.api.views import EVENTS, Event, EventSeries, ObjectReference
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, ImexError, NamespaceTerminating, NotFound
from imex_dra.kube.client import Client

log = structlog.get_logger()

_MAX_NOTE = 1024
"""Bytes, not characters."""

_MAX_PENDING = 1000
_MAX_PER_NAMESPACE = 200
"""Events that objects of one namespace can create within `window` seconds."""


@dataclass(slots=True)
class _Recorded:
    key: Key
    namespace: str
    """Of the object; empty for a cluster-scoped one, whose Events are not limited."""
    first: float
    count: int = 1
    written: float = 0.0


class EventRecorder:
    def __init__(
        self, client: Client, instance: str, clock: Clock, *, window: float = 600.0, series_interval: float = 30.0
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._window = window
        self._series_interval = series_interval
        self._recorded: dict[str, _Recorded] = {}
        self._created: Counter[str] = Counter()
        """Number of recorded Events, by namespace."""
        self._pending: asyncio.Queue[Event] = asyncio.Queue(_MAX_PENDING)

    def warn(self, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        self._record("Warning", resource, obj, reason, message)

    def note(self, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        self._record("Normal", resource, obj, reason, message)

    async def run(self) -> NoReturn:
        while True:
            await self._write(await self._pending.get())
            self._pending.task_done()

    @property
    def pending(self) -> int:
        return self._pending.qsize()

    async def flush(self) -> None:
        """Returns when every Event recorded so far was written or dropped."""
        await self._pending.join()

    def _record(self, type_: str, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> None:
        now = self._clock.monotonic()
        identity = f"{obj.metadata.uid}/{type_}/{reason}/{message}"
        self._forget_before(now - self._window)
        recorded = self._recorded.get(identity)
        if recorded is None:
            event = self._event(type_, resource, obj, reason, message)
            if self._admit(event) and self._enqueue(event):
                self._recorded[identity] = _Recorded(
                    key_of(event), event.regarding.namespace, first=now, written=now
                )
                self._created[event.regarding.namespace] += 1
            return
        recorded.count += 1
        if now - recorded.written >= self._series_interval:
            recorded.written = now
            self._enqueue(self._series(recorded))

    def _forget_before(self, time: float) -> None:
        # The dict is in the order of the first occurrence, so the oldest entries come first.
        while self._recorded and (oldest := next(iter(self._recorded.items())))[1].first <= time:
            self._forget(oldest[0])

    def _forget(self, identity: str) -> None:
        namespace = self._recorded.pop(identity).namespace
        self._created[namespace] -= 1
        if not self._created[namespace]:
            del self._created[namespace]

    def _admit(self, event: Event) -> bool:
        namespace = event.regarding.namespace
        if not namespace or self._created[namespace] < _MAX_PER_NAMESPACE:
            return True
        log.debug("Event dropped, its namespace has too many", namespace=namespace, reason=event.reason)
        return False

    def _event(self, type_: str, resource: Resource[Any], obj: Object, reason: Reason, message: str) -> Event:
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
            note=_truncated(message),
            type=type_,
        )

    def _series(self, recorded: _Recorded) -> Event:
        return Event(
            metadata=ObjectMeta(name=recorded.key.name, namespace=recorded.key.namespace),
            series=EventSeries(count=recorded.count, last_observed_time=rfc3339_micro(self._clock.now())),
        )

    def _enqueue(self, event: Event) -> bool:
        try:
            self._pending.put_nowait(event)
            return True
        except asyncio.QueueFull:
            log.debug("Event dropped, the queue is full", reason=event.reason, note=event.note)
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
            # The Event is not on the server, so its next occurrence must create it.
            for identity in [i for i, entry in self._recorded.items() if entry.key == key_of(event)]:
                self._forget(identity)
            ordinary = isinstance(error, NamespaceTerminating | NotFound)
            report = log.debug if ordinary else log.warning
            report("Event not written", reason=event.reason, note=event.note, error=str(error))


def _truncated(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MAX_NOTE:
        return message
    return encoded[: _MAX_NOTE - 3].decode(errors="ignore") + "..."
