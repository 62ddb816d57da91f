"""What a kubelet remembers when it is killed, and what it does not believe afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kubelet.api import SLICES
from tests.kubelet.implementations import HOLLOW, REAL, SIMULATED
from tests.kubelet.plugin import PREPARE, UNPREPARE
from tests.kubelet.stage import Stage, unique
from tests.sandbox.waiting import eventually


@contextmanager
def without_kubelet(stage: Stage) -> Iterator[None]:
    stage.kubelet.kill()
    try:
        yield
    finally:
        stage.kubelet.revive()


def publish(stage: Stage, driver: str, node: str) -> str:
    name = unique("slice")
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "seat"}]}
    stage.api.create(SLICES, {"metadata": {"name": name}, "spec": spec})
    return f"{SLICES}/{name}"


@pytest.mark.parametrize("kubelet", [REAL, HOLLOW, SIMULATED], indirect=True, scope="session")
def test_running_pods_go_on_and_their_claims_are_remembered(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    before = pod.container()
    with without_kubelet(stage):
        plugin.registered.clear()
    plugin.until_registered()
    stage.pod().until_running()
    assert plugin.times(PREPARE, claim) == 1
    after = pod.container()
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    pod.delete()
    pod.until_gone()
    assert plugin.times(UNPREPARE, claim) == 1


def test_a_new_pod_of_a_remembered_claim_asks_the_driver_again(stage: Stage) -> None:
    """It is remembered who holds a claim, not that it was prepared."""
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    with without_kubelet(stage):
        plugin.registered.clear()
    plugin.until_registered()
    late = stage.pod(claim)
    late.until_running()
    assert plugin.times(PREPARE, claim) == 2
    for each in (pod, late):
        assert plugin.times(UNPREPARE, claim) == 0
        each.delete()
        each.until_gone()
    assert plugin.times(UNPREPARE, claim) == 1


def test_a_pod_deleted_meanwhile_is_ended_and_unprepared(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    with without_kubelet(stage):
        pod.delete()
    pod.until_gone()
    assert plugin.times(UNPREPARE, claim) == 1


@pytest.mark.slow
def test_a_pod_that_vanished_meanwhile_is_unprepared_by_the_minute(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    with without_kubelet(stage):
        pod.delete(grace=0)
        pod.until_gone()
    plugin.until(UNPREPARE, claim, within=100)


@pytest.mark.parametrize("kubelet", [SIMULATED], indirect=True, scope="session")
def test_of_a_pod_that_vanished_meanwhile_nothing_stays_on_disk(stage: Stage) -> None:
    pod = stage.pod()
    pod.until_running()
    directory = stage.kubelet.root / "pods" / pod.uid
    assert directory.exists()
    with without_kubelet(stage):
        pod.delete(grace=0)
        pod.until_gone()
    assert eventually(lambda: not directory.exists())


@pytest.mark.slow
def test_slices_go_at_the_start_and_half_a_minute_after_the_plugin(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    mine, others = publish(stage, stage.driver, stage.kubelet.name), publish(stage, stage.driver, "elsewhere")
    with without_kubelet(stage):
        plugin.registered.clear()
    assert eventually(lambda: stage.api.find(mine) is None)
    plugin.until_registered()
    again = publish(stage, stage.driver, stage.kubelet.name)
    foreign = publish(stage, f"other.{stage.driver}", stage.kubelet.name)
    plugin.stop()
    assert not eventually(lambda: stage.api.find(again) is None, within=25)
    assert eventually(lambda: stage.api.find(again) is None)
    assert stage.api.find(others)
    assert stage.api.find(foreign)
    for kept in (others, foreign):
        stage.api.delete(kept)
