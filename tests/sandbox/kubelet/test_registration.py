"""A plugin registers through a socket in the plugin registry directory."""

from tests.sandbox.kubelet.fakeplugin import PREPARE
from tests.sandbox.kubelet.fixture import KubeletFixture
from tests.waiting import until


def test_a_plugin_is_asked_for_its_info_once_and_notified(node: KubeletFixture) -> None:
    plugin = node.registered_plugin()
    assert plugin.get_info_calls == 1
    assert plugin.registration_errors == []


def test_hidden_sockets_and_other_files_are_ignored(node: KubeletFixture) -> None:
    (node.kubelet.directory / "plugins_registry" / "notes.txt").write_text("not a socket")
    hidden = node.plugin(".hidden", driver=f".{node.driver}")
    node.registered_plugin()
    assert not hidden.registered.is_set()
    assert hidden.get_info_calls == 0


def test_a_plugin_without_a_supported_version_is_refused_with_the_reason(node: KubeletFixture) -> None:
    plugin = node.plugin(versions=["v9.DRAPlugin"])
    until(lambda: bool(plugin.registration_errors))
    assert plugin.registration_errors[0] == (
        "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver "
        f"plugin {node.driver} at endpoint {plugin.socket}: none of services supported by the plugin "
        '(["v9.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
    )


def test_without_a_plugin_the_event_says_that_the_driver_is_not_registered(node: KubeletFixture) -> None:
    assert failed_prepare(node) == (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        f"DRA driver {node.driver} is not registered"
    )


def test_a_plugin_is_deregistered_when_its_socket_is_removed(node: KubeletFixture) -> None:
    node.registered_plugin().stop()
    until(lambda: "is not registered" in failed_prepare(node))
    node.registered_plugin("again")  # claims that the first plugin prepared must be unprepared


def failed_prepare(node: KubeletFixture) -> str:
    pod = node.pod(node.claim())
    return pod.until_event("FailedPrepareDynamicResources")


def test_the_newest_plugin_of_a_driver_is_called(node: KubeletFixture) -> None:
    old = node.registered_plugin("old")
    new = node.registered_plugin("new")
    claim = node.claim()
    node.pod(claim).until_ready()
    assert (old.call_count(PREPARE, claim), new.call_count(PREPARE, claim)) == (0, 1)


def test_the_older_plugin_is_called_again_after_the_newer_one_stops(node: KubeletFixture) -> None:
    old = node.registered_plugin("old")
    new = node.registered_plugin("new")
    new.stop()

    def older_is_called() -> bool:
        """Until the kubelet has noticed, it may call the newer one, and then it retries after a minute."""
        claim = node.claim()
        pod = node.pod(claim)
        pod.until(lambda: pod.condition("Ready") == "True" or bool(pod.events("FailedPrepareDynamicResources")))
        return old.call_count(PREPARE, claim) == 1

    until(older_is_called)
