"""The health that a driver reports for its devices shows in the status of the pods that use them."""

from typing import Any

import pytest

from imex_dra.dra.proto import health_pb2
from imex_sandbox.kubelet.checkpoint import Device
from imex_sandbox.kubelet.devicehealth import DEFAULT_TIMEOUT, DeviceHealthCache, DeviceKey
from tests.kubernetesversion import device_health
from tests.sandbox.kubelet.fakeplugin import HEALTH, FakePlugin
from tests.sandbox.kubelet.fixture import RUN_FOREVER, V1, KubeletFixture, Pod


def reported(pod: Pod, container: str = "c") -> Any:
    return pod.container(container).get("allocatedResourcesStatus")


def reported_after_touch(pod: Pod) -> Any:
    """An expired report shows only with the next status update."""
    pod.touch()
    return reported(pod)


def expected(node: KubeletFixture, claim: str, health: str, **more: str) -> list[dict[str, Any]]:
    resource = {"resourceID": f"{node.driver}/pool/{claim}", "health": health, **more}
    return [{"name": f"claim:{claim}", "resources": [resource]}]


def healthy_pod(node: KubeletFixture) -> tuple[FakePlugin, str, Pod]:
    """A plugin that reports health, and a running pod with a healthy device."""
    plugin = node.plugin(versions=(*V1, HEALTH))
    plugin.until_registered()
    claim = node.claim()
    pod = node.pod(claim)
    pod.until_ready()
    plugin.report_health(claim, health_pb2.HEALTHY, timeout=600)
    pod.until(lambda: reported(pod) == expected(node, claim, "Healthy"))
    return plugin, claim, pod


@device_health
def test_the_health_is_unknown_if_the_driver_reports_none(node: KubeletFixture) -> None:
    node.registered_plugin()
    claim = node.claim()
    without = {**RUN_FOREVER, "name": "without", "resources": {}}
    pod = node.pod(claim, containers=[RUN_FOREVER, without])
    pod.until_ready()
    pod.until(lambda: reported(pod) == expected(node, claim, "Unknown"))
    assert reported(pod, "without") is None


@device_health
def test_a_report_shows_with_its_message_until_it_expires(node: KubeletFixture) -> None:
    plugin, claim, pod = healthy_pod(node)
    plugin.report_health(claim, health_pb2.UNHEALTHY, "the fabric is broken", timeout=600)
    pod.until(lambda: reported(pod) == expected(node, claim, "Unhealthy", message="the fabric is broken"))
    plugin.report_health(claim, health_pb2.HEALTHY, timeout=1)
    pod.until(lambda: reported_after_touch(pod) == expected(node, claim, "Unknown"))


@device_health
def test_the_health_is_unknown_after_the_plugin_stops(node: KubeletFixture) -> None:
    plugin, claim, pod = healthy_pod(node)
    plugin.stop()
    pod.until(lambda: reported_after_touch(pod) == expected(node, claim, "Unknown"))
    node.plugin("again").until_registered()


class CacheFixture:
    """A health cache with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes: list[set[DeviceKey]] = []
        self.cache = DeviceHealthCache(lambda: self.now, self.changes.append)

    def update(self, *devices: tuple[str, health_pb2.HealthStatus, str, int]) -> None:
        self.cache.update(
            "driver",
            [
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name="pool", device_name=name),
                    health=health,
                    message=message,
                    health_check_timeout_seconds=timeout,
                )
                for name, health, message, timeout in devices
            ],
        )

    def health(self, name: str) -> str:
        return self.cache.get(DeviceKey("driver", "pool", name)).health


@pytest.mark.parametrize(("timeout", "valid_for"), [(0, DEFAULT_TIMEOUT), (-5, DEFAULT_TIMEOUT), (7, 7.0)])
def test_a_report_expires_after_its_timeout(timeout: int, valid_for: float) -> None:
    fixture = CacheFixture()
    fixture.update(("a", health_pb2.HEALTHY, "", timeout))
    fixture.now = valid_for
    assert fixture.health("a") == "Healthy"
    fixture.now = valid_for + 0.1
    assert fixture.health("a") == "Unknown"


def test_only_a_different_report_is_a_change_but_every_report_renews_the_timeout() -> None:
    fixture = CacheFixture()
    fixture.update(("a", health_pb2.HEALTHY, "", 0), ("b", health_pb2.HEALTHY, "", 0))
    fixture.now = 20.0
    fixture.update(("a", health_pb2.HEALTHY, "", 0), ("b", health_pb2.UNHEALTHY, "hot", 0))
    assert [{key.device for key in change} for change in fixture.changes] == [{"a", "b"}, {"b"}]
    fixture.now = 45.0
    assert (fixture.health("a"), fixture.health("b")) == ("Healthy", "Unhealthy")


def test_a_device_is_listed_once_with_its_first_cdi_id_and_a_truncated_message() -> None:
    fixture = CacheFixture()
    fixture.update(("a", health_pb2.UNHEALTHY, "x" * 2000, 0))
    devices = [("driver", Device("pool", "a", cdi_device_ids=["v/c=one", "v/c=two"]))] * 2
    status = fixture.cache.resource_status("claim:c", devices)
    assert [resource["resourceID"] for resource in status["resources"]] == ["v/c=one"]
    assert status["resources"][0]["message"] == "x" * 1021 + "..."
