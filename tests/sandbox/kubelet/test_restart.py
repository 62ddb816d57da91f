"""What a kubelet knows after it was killed and restarted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.sandbox.kubelet.api import SLICES
from tests.sandbox.kubelet.fakeplugin import PREPARE, UNPREPARE
from tests.sandbox.kubelet.fixture import KubeletFixture, never, unique
from tests.sandbox.kubelet.implementations import HOLLOW, REAL, SIMULATED
from tests.waiting import until


@contextmanager
def kubelet_down(node: KubeletFixture) -> Iterator[None]:
    node.kubelet.kill_kubelet()
    try:
        yield
    finally:
        node.kubelet.start_kubelet()


def publish_slice(node: KubeletFixture, driver: str, node_name: str) -> str:
    name = unique("slice")
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node_name, "pool": pool, "devices": [{"name": "channel-0"}]}
    node.api.create(SLICES, {"metadata": {"name": name}, "spec": spec})
    return f"{SLICES}/{name}"


@pytest.mark.parametrize("kubelet", [REAL, HOLLOW, SIMULATED], indirect=True, scope="session")
def test_running_pods_continue_and_their_claims_are_restored(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    before = pod.container()
    with kubelet_down(node):
        plugin.registered.clear()
    plugin.until_registered()
    node.pod().until_ready()
    assert plugin.call_count(PREPARE, claim) == 1
    after = pod.container()
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    pod.delete()
    pod.until_removed()
    assert plugin.call_count(UNPREPARE, claim) == 1


def test_a_restored_claim_is_prepared_again_for_a_new_pod(node: KubeletFixture) -> None:
    """The checkpoint holds the users of a claim, but not that it is prepared."""
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    with kubelet_down(node):
        plugin.registered.clear()
    plugin.until_registered()
    late = node.pod(claim)
    late.until_ready()
    assert plugin.call_count(PREPARE, claim) == 2
    for each in (pod, late):
        assert plugin.call_count(UNPREPARE, claim) == 0
        each.delete()
        each.until_removed()
    assert plugin.call_count(UNPREPARE, claim) == 1


def test_a_pod_deleted_while_the_kubelet_was_down_is_terminated_and_unprepared(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    with kubelet_down(node):
        pod.delete()
    pod.until_removed()
    assert plugin.call_count(UNPREPARE, claim) == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_pod_removed_while_the_kubelet_was_down_is_unprepared_within_a_minute(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    with kubelet_down(node):
        pod.delete(grace=0)
        pod.until_removed()
    plugin.until_called(UNPREPARE, claim, within=100)


@pytest.mark.parametrize("kubelet", [SIMULATED], indirect=True, scope="session")
def test_the_files_of_a_pod_removed_while_the_kubelet_was_down_are_removed(node: KubeletFixture) -> None:
    pod = node.pod()
    pod.until_ready()
    directory = node.kubelet.root / "pods" / pod.uid
    assert directory.exists()
    with kubelet_down(node):
        pod.delete(grace=0)
        pod.until_removed()
    until(lambda: not directory.exists())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_resource_slices_are_deleted_at_the_start_and_30_seconds_after_the_last_plugin_is_gone(
    node: KubeletFixture,
) -> None:
    plugin = node.registered_plugin()
    before_restart = publish_slice(node, node.driver, node.kubelet.name)
    other_node = publish_slice(node, node.driver, "elsewhere")
    with kubelet_down(node):
        plugin.registered.clear()
    until(lambda: node.api.find(before_restart) is None)
    plugin.until_registered()
    after_restart = publish_slice(node, node.driver, node.kubelet.name)
    other_driver = publish_slice(node, f"other.{node.driver}", node.kubelet.name)
    plugin.stop()
    never(lambda: node.api.find(after_restart) is None, within=25)
    until(lambda: node.api.find(after_restart) is None)
    assert node.api.find(other_node)
    assert node.api.find(other_driver)
    for kept in (other_node, other_driver):
        node.api.delete(kept)
