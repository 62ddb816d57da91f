"""Events of a kubelet about its pods, in the form of the real kubelet: core/v1, with a count of repetitions."""

import asyncio
import hashlib
from typing import NoReturn

import structlog

from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, Resource, View, shown
from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ImexError
from imex_dra.kube.client import Client
from imex_sandbox.kubelet.views.pod import Pod

log = structlog.get_logger()

_MAX_QUEUED = 500


class InvolvedObject(View, frozen=True, gc=False):
    # Shown although they are defaults: kubectl describe selects Events by kind.
    api_version: str = shown("v1")
    kind: str = shown("Pod")
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


class EventRecorder:
    """Recording an Event never blocks and never fails; Events that do not fit into the queue are dropped."""

    def __init__(self, client: Client, node: str, clock: Clock) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._recorded: dict[str, Event] = {}
        self._queue: asyncio.Queue[Event] = asyncio.Queue(_MAX_QUEUED)

    def warning(self, pod: Pod, reason: str, message: str, *, container: str = "") -> None:
        self._record("Warning", pod, reason, message, container)

    def normal(self, pod: Pod, reason: str, message: str, *, container: str = "") -> None:
        self._record("Normal", pod, reason, message, container)

    async def run(self) -> NoReturn:
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except ImexError as error:
                pod = event.involved_object.name
                log.debug("cannot write an Event", pod=pod, reason=event.reason, error=str(error))

    def forget(self, pod: Pod) -> None:
        """The next Event of the pod starts with a count of 1."""
        self._recorded = {key: e for key, e in self._recorded.items() if e.involved_object.uid != pod.uid}

    def _record(self, kind: str, pod: Pod, reason: str, message: str, container: str) -> None:
        identity = f"{pod.uid}/{kind}/{reason}/{container}/{message}"
        now = rfc3339(self._clock.now())
        previous = self._recorded.get(identity)
        count, first = (previous.count + 1, previous.first_timestamp) if previous else (1, now)
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
        self._recorded[identity] = event
        if not self._queue.full():
            self._queue.put_nowait(event)

    async def _write(self, event: Event) -> None:
        if event.count == 1:
            await self._client.create(EVENTS, event)
            return
        change = {"count": event.count, "lastTimestamp": event.last_timestamp}
        await self._client.patch(EVENTS, Key(event.metadata.namespace, event.metadata.name), change)
