"""Claims are unprepared when no container can use them any more, before the pod is told to be over."""

from datetime import datetime
from typing import Any

from tests.kubelet.plugin import PREPARE, UNPREPARE
from tests.kubelet.stage import FOR_EVER, Stage, container
from tests.sandbox.waiting import eventually

SLOW_END = container("trap 'sleep 2; exit 0' TERM; sleep 10000 & wait")
SLOW_END_HOLLOW = {"hollow.sandbox.imex-dra.io/c": '{"ends": 2}'}
SHORT = container("exit 0")
SHORT_HOLLOW = {"hollow.sandbox.imex-dra.io/c": '{"runs": 0}'}
HELD = "imex-dra.io/held-by-a-test"


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_deleted_pod_is_unprepared_after_its_containers_ended(stage: Stage) -> None:
    """A finalizer keeps the object, so that its last status can be read."""
    plugin = stage.registered_plugin()
    claim = stage.claim()
    kept: dict[str, Any] = {"finalizers": [HELD], "annotations": SLOW_END_HOLLOW}
    pod = stage.pod(claim, containers=[SLOW_END], terminationGracePeriodSeconds=30, metadata=kept)
    pod.until_running()
    pod.delete()
    call = plugin.until(UNPREPARE, claim)
    pod.until_phase("Succeeded")
    assert moment(pod.container()["state"]["terminated"]["finishedAt"]) <= call.at


def test_a_pod_is_not_over_before_the_answer(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    plugin.gate[UNPREPARE].clear()
    claim = stage.claim()
    pod = stage.pod(claim, containers=[SHORT], restartPolicy="Never", metadata={"annotations": SHORT_HOLLOW})
    plugin.until(UNPREPARE, claim)
    pod.until(lambda: pod.state() == "terminated")
    assert pod.phase in ("Pending", "Running")
    plugin.gate[UNPREPARE].set()
    pod.until_phase("Succeeded")
    assert plugin.times(UNPREPARE, claim) == 1


def test_a_deleted_pod_stays_until_the_answer(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    plugin.gate[UNPREPARE].clear()
    pod.delete()
    plugin.until(UNPREPARE, claim)
    assert not eventually(lambda: not pod.exists(), within=2)
    plugin.gate[UNPREPARE].set()
    pod.until_gone()


def test_an_error_keeps_the_pod_and_is_tried_again(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    plugin.errors[UNPREPARE, claim] = "busy"
    pod = stage.pod(claim)
    pod.until_running()
    pod.delete()
    plugin.until(UNPREPARE, claim, times=2)
    assert pod.exists()
    plugin.errors.clear()
    pod.until_gone()


def test_a_pod_deleted_by_force_is_unprepared(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    pod.delete(grace=0)
    pod.until_gone()
    plugin.until(UNPREPARE, claim)


def test_a_plugin_unprepares_what_its_predecessor_prepared(stage: Stage) -> None:
    old = stage.registered_plugin("old")
    claim = stage.claim()
    pod = stage.pod(claim, containers=[FOR_EVER])
    pod.until_running()
    old.stop()
    new = stage.registered_plugin("new")
    pod.delete()
    pod.until_gone()
    assert (old.times(PREPARE, claim), new.times(PREPARE, claim)) == (1, 0)
    assert (old.times(UNPREPARE, claim), new.times(UNPREPARE, claim)) == (0, 1)
