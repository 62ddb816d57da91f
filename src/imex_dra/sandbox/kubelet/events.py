"""A kubelet's Events on its pods, as the real one writes them: core/v1, counted when said again."""

import asyncio
import hashlib
from typing import NoReturn

import structlog

from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, Resource, View
from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ImexError
from imex_dra.kube.client import Client
from imex_dra.sandbox.kubelet.views.pod import Pod

log = structlog.get_logger()

_MOST_WAITING = 500


class InvolvedObject(View, frozen=True, gc=False):
    api_version: str = "v1"
    kind: str = "Pod"
    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class Source(View, frozen=True, gc=False):
    component: str = ""
    host: str = ""


class Event(View, frozen=True):
    metadata: ObjectMeta
    involved_object: InvolvedObject
    reason: str
    message: str
    type: str
    source: Source
    first_timestamp: str
    last_timestamp: str
    count: int
    reporting_component: str = ""
    reporting_instance: str = ""


EVENTS = Resource(Event, "", "v1", "events")


class Events:
    """Telling never waits and never fails the teller."""

    def __init__(self, client: Client, node: str, clock: Clock) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._told: dict[str, Event] = {}
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(_MOST_WAITING)

    def warn(self, pod: Pod, reason: str, message: str, *, container: str = "") -> None:
        self._tell("Warning", pod, reason, message, container)

    def note(self, pod: Pod, reason: str, message: str, *, container: str = "") -> None:
        self._tell("Normal", pod, reason, message, container)

    async def run(self) -> NoReturn:
        while True:
            event = await self._waiting.get()
            try:
                await self._write(event)
            except ImexError as error:
                of = event.involved_object
                log.debug("an Event was not written", pod=of.name, reason=event.reason, error=str(error))

    def forget(self, pod: Pod) -> None:
        self._told = {key: event for key, event in self._told.items() if event.involved_object.uid != pod.uid}

    def _tell(self, kind: str, pod: Pod, reason: str, message: str, container: str) -> None:
        identity = f"{pod.uid}/{kind}/{reason}/{container}/{message}"
        now = rfc3339(self._clock.now())
        before = self._told.get(identity)
        count, first = (before.count + 1, before.first_timestamp) if before else (1, now)
        meta = pod.metadata
        suffix = hashlib.sha256(f"{identity}{first}".encode()).hexdigest()[:16]
        event = Event(
            metadata=AnnotatedMeta(name=f"{meta.name}.{suffix}", namespace=meta.namespace),
            involved_object=InvolvedObject(
                namespace=meta.namespace,
                name=meta.name,
                uid=meta.uid,
                field_path=f"spec.containers{{{container}}}" if container else "",
            ),
            reason=reason,
            message=message,
            type=kind,
            source=Source("kubelet", self._node),
            first_timestamp=first,
            last_timestamp=now,
            count=count,
            reporting_component="kubelet",
            reporting_instance=self._node,
        )
        self._told[identity] = event
        if not self._waiting.full():
            self._waiting.put_nowait(event)

    async def _write(self, event: Event) -> None:
        if event.count == 1:
            await self._client.create(EVENTS, event)
            return
        change = {"count": event.count, "lastTimestamp": event.last_timestamp}
        await self._client.patch(EVENTS, Key(event.metadata.namespace, event.metadata.name), change)
