"""Events: created once, then counted in a series."""

import asyncio

import httpx2

from imex_dra.api.domainreasons import no_pods_yet
from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.reasons import Reason
from imex_dra.api.views import EVENTS, NAMESPACES, PODS, Namespace, Pod
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from tests.kube.conftest import ApiServer
from tests.kube.fakeapiserver import FakeApiServer, hang
from tests.virtual import LoopClock, run

SUBJECT = Namespace(ObjectMeta(name="team", uid="u1"))
MESSAGE = no_pods_yet(template="team/train").message()


def test_a_repeated_event_is_written_as_one_event_with_a_series() -> None:
    async def scenario() -> None:
        server = FakeApiServer()
        recorder = EventRecorder(server.client("imex-controller"), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for _ in range(600):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
            await asyncio.sleep(1)
        await recorder.flush()
        (event,) = server.objects.values()
        assert event["note"] == MESSAGE
        assert event["series"]["count"] > 560
        assert server.writes <= 1 + 600 / 30
        recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
        await recorder.flush()
        assert len(server.objects) == 2
        writing.cancel()

    run(scenario())


def test_an_event_that_could_not_be_written_is_created_by_its_next_occurrence() -> None:
    async def scenario() -> None:
        server, failing = FakeApiServer(), [True]

        async def fail_once() -> None:
            if failing:
                failing.pop()
                raise httpx2.ConnectError("connection refused")

        recorder = EventRecorder(server.client("c", fail_once), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for _ in range(3):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
            await recorder.flush()
        assert len(server.objects) == 1
        writing.cancel()

    run(scenario())


def test_recording_does_not_wait_for_the_api_server() -> None:
    async def scenario() -> None:
        recorder = EventRecorder(FakeApiServer().client("c", hang), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for number in range(5000):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, f"{MESSAGE} {number}")
        assert recorder.pending == 1000
        writing.cancel()
        await asyncio.wait({writing})

    run(scenario())


def test_one_namespace_cannot_keep_the_events_of_others_out() -> None:
    async def scenario() -> None:
        server = FakeApiServer()
        recorder = EventRecorder(server.client("c"), "pod-0", LoopClock())

        def warn(namespace: str, number: int) -> None:
            subject = Pod(ObjectMeta(name="p", namespace=namespace, uid=f"uid-{namespace}"))
            recorder.warn(PODS, subject, Reason.NO_PODS_YET, f"{MESSAGE} {number}")

        for number in range(5000):
            warn("hostile", number)
        assert recorder.pending == 200
        warn("quiet", 0)
        writing = asyncio.create_task(recorder.run())
        await recorder.flush()
        assert len(server.objects) == 201
        await asyncio.sleep(601)
        warn("hostile", 0)
        await recorder.flush()
        assert len(server.objects) == 202
        writing.cancel()

    run(scenario())


async def test_kubectl_shows_the_event(api_server: ApiServer, client: Client, namespace: str) -> None:
    subject = await client.get(NAMESPACES, Key("", namespace))
    recorder = EventRecorder(client, "pod-0", Clock(), series_interval=0)
    writing = asyncio.create_task(recorder.run())
    for _ in range(3):
        recorder.warn(NAMESPACES, subject, Reason.NO_PODS_YET, "ß" * 2000)
    await recorder.flush()
    writing.cancel()
    events = await client.list(EVENTS, Selection("default", fields=f"regarding.name={namespace}"))
    (event,) = events
    assert event.series is not None
    assert event.series.count == 3
    assert len(event.note.encode()) <= 1024
    assert event.note.endswith("ß...")
    assert event.reporting_controller == "imex-dra.io/imex-controller"
    table = api_server.kubectl("get", "events", "-A", f"--field-selector=involvedObject.name={namespace}")
    assert "NoPodsYet" in table
