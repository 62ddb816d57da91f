"""Claims are prepared before a pod's first container, and what goes wrong stands in its events word for word."""

import time

import pytest

from tests.kubelet.plugin import PREPARE, UNPREPARE
from tests.kubelet.stage import FOR_EVER, Stage

PREFIX = "Failed to prepare dynamic resources: prepare dynamic resources: "
FAILED = "FailedPrepareDynamicResources"


def test_all_claims_of_a_pod_come_in_one_call(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    one, two = stage.claim(), stage.claim()
    stage.pod(one, two).until_running()
    assert [call.claims for call in plugin.calls] == [{one, two}]


def test_claims_of_two_drivers_go_to_each_its_own(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    other = stage.plugin("b", driver=f"other.{stage.driver}")
    other.until_registered()
    mine, theirs = stage.claim(), stage.claim(driver=other.driver)
    stage.pod(mine, theirs).until_running()
    assert [call.claims for call in plugin.calls] == [{mine}]
    assert [call.claims for call in other.calls] == [{theirs}]


def test_no_container_starts_before_the_answer(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    plugin.gate[PREPARE].clear()
    claim = stage.claim()
    without = {**FOR_EVER, "name": "without", "resources": {}}
    pod = stage.pod(claim, containers=[FOR_EVER, without])
    plugin.until(PREPARE, claim)
    pod.until(lambda: pod.container()["state"] == {"waiting": {"reason": "ContainerCreating"}})
    assert pod.state("without") == "waiting"
    assert pod.phase == "Pending"
    plugin.gate[PREPARE].set()
    pod.until_running()
    assert plugin.times(PREPARE, claim) == 1


def test_a_claim_of_two_pods_is_prepared_once_and_unprepared_after_the_last(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    one = stage.pod(claim)
    one.until_running()
    two = stage.pod(claim)
    two.until_running()
    one.delete()
    one.until_gone()
    assert plugin.times(UNPREPARE, claim) == 0
    two.delete()
    two.until_gone()
    assert (plugin.times(PREPARE, claim), plugin.times(UNPREPARE, claim)) == (1, 1)


def test_the_drivers_error_stands_in_the_event_word_for_word(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    plugin.errors[PREPARE, claim] = "node a: “fabric” is pending; 3 of 18 daemons are ready"
    pod = stage.pod(claim)
    assert pod.until_event(FAILED) == (
        f"{PREFIX}NodePrepareResources failed for ResourceClaim {claim}: "
        "node a: “fabric” is pending; 3 of 18 daemons are ready"
    )
    assert pod.phase == "Pending"


def test_a_claim_missing_in_the_answer_is_called_skipped(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    one, two = stage.claim(), stage.claim()
    plugin.skipped.add(two)
    pod = stage.pod(one, two)
    assert pod.until_event(FAILED) == f"{PREFIX}NodePrepareResources skipped 1 ResourceClaims"


def test_a_pod_that_is_touched_is_tried_again_at_once(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    plugin.errors[PREPARE, claim] = "not yet"
    pod = stage.pod(claim)
    pod.until_event(FAILED)
    plugin.errors.clear()
    pod.nudge()
    pod.until_running()
    assert plugin.times(PREPARE, claim) == 2


@pytest.mark.slow
def test_an_untouched_pod_is_tried_again_after_a_minute_or_more(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    plugin.errors[PREPARE, claim] = "not yet"
    pod = stage.pod(claim)
    first = plugin.until(PREPARE, claim)
    plugin.errors.clear()
    second = plugin.until(PREPARE, claim, times=2, within=100)
    assert 55 < second.at - first.at < 95
    pod.until_running()


def test_a_failed_claim_is_unprepared_when_its_pod_goes(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    claim = stage.claim()
    plugin.errors[PREPARE, claim] = "never"
    pod = stage.pod(claim)
    pod.until_event(FAILED)
    pod.delete()
    pod.until_gone()
    assert plugin.times(UNPREPARE, claim) == 1


def test_a_plugin_that_dies_in_a_call_is_told_of_and_its_successor_asked(stage: Stage) -> None:
    plugin = stage.registered_plugin("old")
    plugin.gate[PREPARE].clear()
    claim = stage.claim()
    pod = stage.pod(claim)
    plugin.until(PREPARE, claim)
    plugin.crash()
    assert pod.until_event(FAILED).startswith(f"{PREFIX}NodePrepareResources: rpc error: code = ")
    successor = stage.registered_plugin("new")
    pod.nudge()
    pod.until_running()
    assert successor.times(PREPARE, claim) == 1


@pytest.mark.slow
def test_a_driver_has_three_quarters_of_a_minute(stage: Stage) -> None:
    """Whose clock is first, the kubelet's or the plugin's, words the rest of the message."""
    plugin = stage.registered_plugin()
    plugin.gate[PREPARE].clear()
    claim = stage.claim()
    pod = stage.pod(claim)
    call = plugin.until(PREPARE, claim)
    said = pod.until_event(FAILED, within=90)
    assert time.time() - call.at > 35  # of 45; on a busy machine the plugin hears of the call late
    assert "NodePrepareResources: rpc error: code = DeadlineExceeded desc = " in said
