"""Claims are prepared before the first container starts, and errors appear word for word in the pod's Events."""

import time

import pytest

from tests.sandbox.kubelet.fakeplugin import PREPARE, UNPREPARE
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture

PREFIX = "Failed to prepare dynamic resources: prepare dynamic resources: "
FAILED = "FailedPrepareDynamicResources"


def test_all_claims_of_a_pod_are_prepared_in_one_call(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    one, two = node.claim(), node.claim()
    node.pod(one, two).until_ready()
    assert [call.claims for call in plugin.calls] == [{one, two}]


def test_each_driver_prepares_only_its_own_claims(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    other = node.plugin("b", driver=f"other.{node.driver}")
    other.until_registered()
    first, second = node.claim(), node.claim(driver=other.driver)
    node.pod(first, second).until_ready()
    assert [call.claims for call in plugin.calls] == [{first}]
    assert [call.claims for call in other.calls] == [{second}]


def test_no_container_starts_before_the_claims_are_prepared(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    plugin.gate[PREPARE].clear()
    claim = node.claim()
    without = {**RUN_FOREVER, "name": "without", "resources": {}}
    pod = node.pod(claim, containers=[RUN_FOREVER, without])
    plugin.until_called(PREPARE, claim)
    pod.until(lambda: pod.container()["state"] == {"waiting": {"reason": "ContainerCreating"}})
    assert pod.state("without") == "waiting"
    assert pod.phase == "Pending"
    plugin.gate[PREPARE].set()
    pod.until_ready()
    assert plugin.call_count(PREPARE, claim) == 1


def test_a_shared_claim_is_prepared_once_and_unprepared_after_the_last_pod(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    one = node.pod(claim)
    one.until_ready()
    two = node.pod(claim)
    two.until_ready()
    one.delete()
    one.until_removed()
    assert plugin.call_count(UNPREPARE, claim) == 0
    two.delete()
    two.until_removed()
    assert (plugin.call_count(PREPARE, claim), plugin.call_count(UNPREPARE, claim)) == (1, 1)


def test_the_drivers_error_appears_word_for_word_in_the_event(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    plugin.errors[PREPARE, claim] = "node a: “fabric” is pending; 3 of 18 daemons are ready"
    pod = node.pod(claim)
    assert pod.until_event(FAILED) == (
        f"{PREFIX}NodePrepareResources failed for ResourceClaim {claim}: "
        "node a: “fabric” is pending; 3 of 18 daemons are ready"
    )
    assert pod.phase == "Pending"


def test_a_claim_missing_from_the_response_is_reported_as_skipped(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    one, two = node.claim(), node.claim()
    plugin.skipped.add(two)
    pod = node.pod(one, two)
    assert pod.until_event(FAILED) == f"{PREFIX}NodePrepareResources skipped 1 ResourceClaims"


def test_a_change_of_the_pod_retries_a_failed_prepare_at_once(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    plugin.errors[PREPARE, claim] = "not yet"
    pod = node.pod(claim)
    pod.until_event(FAILED)
    plugin.errors.clear()
    pod.touch()
    pod.until_ready()
    assert plugin.call_count(PREPARE, claim) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_failed_prepare_is_retried_after_60_to_90_seconds(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    plugin.errors[PREPARE, claim] = "not yet"
    pod = node.pod(claim)
    first = plugin.until_called(PREPARE, claim)
    pod.until_event(FAILED)
    plugin.errors.clear()
    second = plugin.until_called(PREPARE, claim, times=2, within=120)
    assert 55 < second.at - first.at < 110  # not 90: on a busy machine the plugin receives the call late
    pod.until_ready()


def test_a_claim_whose_prepare_failed_is_unprepared_when_its_pod_is_deleted(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    claim = node.claim()
    plugin.errors[PREPARE, claim] = "never"
    pod = node.pod(claim)
    pod.until_event(FAILED)
    pod.delete()
    pod.until_removed()
    assert plugin.call_count(UNPREPARE, claim) == 1


def test_a_plugin_that_crashes_during_a_call_is_reported_and_the_next_plugin_is_called(
    node: KubeletFixture,
) -> None:
    plugin = node.registered_plugin("old")
    plugin.gate[PREPARE].clear()
    claim = node.claim()
    pod = node.pod(claim)
    plugin.until_called(PREPARE, claim)
    plugin.crash()
    assert pod.until_event(FAILED).startswith(f"{PREFIX}NodePrepareResources: rpc error: code = ")
    successor = node.registered_plugin("new")
    pod.touch()
    pod.until_ready()
    assert successor.call_count(PREPARE, claim) == 1


@pytest.mark.slow
def test_a_prepare_call_times_out_after_45_seconds(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    plugin.gate[PREPARE].clear()
    claim = node.claim()
    pod = node.pod(claim)
    call = plugin.until_called(PREPARE, claim)
    message = pod.until_event(FAILED, within=90)
    assert time.time() - call.at > 35  # not 45: on a busy machine the plugin receives the call late
    # The rest of the message depends on which side times out first.
    assert "NodePrepareResources: rpc error: code = DeadlineExceeded desc = " in message
