"""Claims are unprepared after all containers have terminated, and before the pod completes."""

from datetime import datetime
from typing import Any

from tests.sandbox.kubelet.fakeplugin import PREPARE, UNPREPARE
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture, container, never

SLOW_EXIT = container("trap 'sleep 2; exit 0' TERM; sleep 10000 & wait")
SLOW_EXIT_HOLLOW = {"hollow.sandbox.imex-dra.io/c": '{"ends": 2}'}
SHORT_RUN = container("exit 0")
SHORT_RUN_HOLLOW = {"hollow.sandbox.imex-dra.io/c": '{"runs": 0}'}
FINALIZER = "imex-dra.io/held-by-a-test"


def test_the_claims_of_a_deleted_pod_are_unprepared_after_its_containers_terminated(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    # The finalizer keeps the object, so that its final status can be read.
    metadata: dict[str, Any] = {"finalizers": [FINALIZER], "annotations": SLOW_EXIT_HOLLOW}
    pod = node.pod(claim, containers=[SLOW_EXIT], terminationGracePeriodSeconds=30, metadata=metadata)
    pod.until_ready()
    pod.delete()
    call = plugin.until_called(UNPREPARE, claim)
    pod.until_phase("Succeeded")
    assert datetime.fromisoformat(pod.terminated()["finishedAt"]).timestamp() <= call.at


def test_a_pod_completes_only_after_its_claims_are_unprepared(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    plugin.gate[UNPREPARE].clear()
    claim = node.claim()
    metadata = {"annotations": SHORT_RUN_HOLLOW}
    pod = node.pod(claim, containers=[SHORT_RUN], restartPolicy="Never", metadata=metadata)
    plugin.until_called(UNPREPARE, claim)
    pod.until(lambda: pod.state() == "terminated")
    assert pod.phase in ("Pending", "Running")
    plugin.gate[UNPREPARE].set()
    pod.until_phase("Succeeded")
    assert plugin.call_count(UNPREPARE, claim) == 1


def test_a_deleted_pod_is_removed_only_after_its_claims_are_unprepared(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    plugin.gate[UNPREPARE].clear()
    pod.delete()
    plugin.until_called(UNPREPARE, claim)
    never(lambda: not pod.exists(), within=2)
    plugin.gate[UNPREPARE].set()
    pod.until_removed()


def test_a_failed_unprepare_keeps_the_pod_and_is_retried(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    plugin.errors[UNPREPARE, claim] = "busy"
    pod = node.pod(claim)
    pod.until_ready()
    pod.delete()
    plugin.until_called(UNPREPARE, claim, times=2)
    assert pod.exists()
    plugin.errors.clear()
    pod.until_removed()


def test_the_claims_of_a_force_deleted_pod_are_unprepared(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    pod.delete(grace=0)
    pod.until_removed()
    plugin.until_called(UNPREPARE, claim)


def test_a_new_plugin_unprepares_what_the_previous_one_prepared(node: KubeletFixture) -> None:
    old = node.registered_plugin("old")
    claim = node.claim()
    pod = node.pod(claim, containers=[RUN_FOREVER])
    pod.until_ready()
    old.stop()
    new = node.registered_plugin("new")
    pod.delete()
    pod.until_removed()
    assert (old.call_count(PREPARE, claim), new.call_count(PREPARE, claim)) == (1, 0)
    assert (old.call_count(UNPREPARE, claim), new.call_count(UNPREPARE, claim)) == (0, 1)
