"""How a plugin becomes known: by a socket in the registry directory."""

from tests.kubelet.plugin import PREPARE
from tests.kubelet.stage import Stage
from tests.sandbox.waiting import eventually


def test_a_socket_in_the_registry_is_asked_and_told(stage: Stage) -> None:
    plugin = stage.registered_plugin()
    assert plugin.asked == 1
    assert plugin.refusals == []


def test_a_file_that_is_no_socket_or_is_hidden_is_ignored(stage: Stage) -> None:
    registry = stage.kubelet.directory / "plugins_registry"
    (registry / "notes.txt").write_text("nothing to see")
    hidden = stage.plugin(".hidden", driver=f".{stage.driver}")
    stage.registered_plugin()
    assert not hidden.registered.is_set()
    assert hidden.asked == 0


def test_a_plugin_of_services_that_nobody_knows_is_refused_with_the_reason(stage: Stage) -> None:
    plugin = stage.plugin(versions=["v9.DRAPlugin"])
    assert eventually(lambda: bool(plugin.refusals))
    assert plugin.refusals[0] == (
        "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver "
        f"plugin {stage.driver} at endpoint {plugin.socket}: none of services supported by the plugin "
        '(["v9.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
    )


def test_without_a_plugin_the_pod_says_that_the_driver_is_not_registered(stage: Stage) -> None:
    pod = stage.pod(stage.claim())
    assert pod.until_event("FailedPrepareDynamicResources") == (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        f"DRA driver {stage.driver} is not registered"
    )


def test_a_plugin_whose_socket_is_gone_is_forgotten(stage: Stage) -> None:
    stage.registered_plugin().stop()
    assert eventually(lambda: "is not registered" in failure(stage))
    stage.registered_plugin("again")  # whoever was asked for a claim once must be asked to give it back


def failure(stage: Stage) -> str:
    pod = stage.pod(stage.claim())
    return pod.until_event("FailedPrepareDynamicResources")


def test_of_two_plugins_of_a_driver_the_newer_is_called(stage: Stage) -> None:
    old = stage.registered_plugin("old")
    new = stage.registered_plugin("new")
    claim = stage.claim()
    stage.pod(claim).until_running()
    assert (old.times(PREPARE, claim), new.times(PREPARE, claim)) == (0, 1)


def test_when_the_newer_plugin_goes_the_older_is_called_again(stage: Stage) -> None:
    old = stage.registered_plugin("old")
    new = stage.registered_plugin("new")
    new.stop()

    def called_the_older() -> bool:
        claim = stage.claim()
        stage.pod(claim).until_running()
        return old.times(PREPARE, claim) == 1

    assert eventually(called_the_older)
