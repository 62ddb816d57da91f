"""Events: said once, then counted."""

import asyncio

import httpx2
import pytest

from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import EVENTS, NAMESPACES, Namespace
from imex_dra.base.clock import LoopClock, SystemClock
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.memory import Memory, hang
from tests.virtual import run

SUBJECT = Namespace(ObjectMeta(name="team", uid="u1"))
MESSAGE = sentence(Reason.NO_PODS_YET)


def test_the_same_thing_said_again_is_one_event_with_a_count() -> None:
    async def scenario() -> None:
        memory = Memory()
        recorder = EventRecorder(memory.client("imex-controller"), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for _ in range(600):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
            await asyncio.sleep(1)
        await recorder.flush()
        (event,) = memory.objects.values()
        assert event["note"] == "no pod has claimed a channel yet"
        assert event["series"]["count"] > 560
        assert memory.writes <= 1 + 600 / 30
        recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
        await recorder.flush()
        assert len(memory.objects) == 2
        writing.cancel()

    run(scenario())


def test_an_event_that_could_not_be_written_is_told_anew() -> None:
    async def scenario() -> None:
        memory, broken = Memory(), [True]

        async def line() -> None:
            if broken:
                broken.pop()
                raise httpx2.ConnectError("the line is cut")

        recorder = EventRecorder(memory.client("c", line), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for _ in range(3):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, MESSAGE)
            await recorder.flush()
        assert len(memory.objects) == 1
        writing.cancel()

    run(scenario())


def test_telling_never_waits_for_the_api_server() -> None:
    async def scenario() -> None:
        recorder = EventRecorder(Memory().client("c", hang), "pod-0", LoopClock())
        writing = asyncio.create_task(recorder.run())
        for number in range(5000):
            recorder.warn(NAMESPACES, SUBJECT, Reason.NO_PODS_YET, f"{MESSAGE} {number}")
        assert recorder.waiting == 1000
        writing.cancel()
        await asyncio.wait({writing})

    run(scenario())


@pytest.mark.kube
async def test_people_see_it_with_kubectl(control_plane: ControlPlane, client: Client, namespace: str) -> None:
    subject = await client.get(NAMESPACES, Key("", namespace))
    recorder = EventRecorder(client, "pod-0", SystemClock(), quiet=0)
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
    table = control_plane.kubectl("get", "events", "-A", f"--field-selector=involvedObject.name={namespace}")
    assert "NoPodsYet" in table
