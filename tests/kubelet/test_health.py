"""How a pod's status says what its driver says of its devices."""

from typing import Any

import pytest

from imex_dra.dra.proto import health_pb2
from imex_dra.sandbox.kubelet.health import STALE, DeviceKey, Health
from imex_dra.sandbox.kubelet.ledger import Device
from tests.kubelet.plugin import HEALTH, Plugin
from tests.kubelet.stage import FOR_EVER, V1, Pod, Stage


def told(pod: Pod, container: str = "c") -> Any:
    return pod.container(container).get("allocatedResourcesStatus")


def one(stage: Stage, claim: str, health: str, **more: str) -> list[dict[str, Any]]:
    resource = {"resourceID": f"{stage.driver}/pool/{claim}", "health": health, **more}
    return [{"name": f"claim:{claim}", "resources": [resource]}]


def watching(stage: Stage) -> tuple[Plugin, str, Pod]:
    """A driver that tells of its devices, and a running pod that claims one."""
    plugin = stage.plugin(versions=(*V1, HEALTH))
    plugin.until_registered()
    claim = stage.claim()
    pod = stage.pod(claim)
    pod.until_running()
    plugin.report(claim, health_pb2.HEALTHY, lasts=600)
    pod.until(lambda: told(pod) == one(stage, claim, "Healthy"))
    return plugin, claim, pod


def test_unknown_if_the_driver_tells_nothing(stage: Stage) -> None:
    stage.registered_plugin()
    claim = stage.claim()
    without = {**FOR_EVER, "name": "without", "resources": {}}
    pod = stage.pod(claim, containers=[FOR_EVER, without])
    pod.until_running()
    pod.until(lambda: told(pod) == one(stage, claim, "Unknown"))
    assert told(pod, "without") is None


def test_what_the_driver_tells_and_for_how_long(stage: Stage) -> None:
    plugin, claim, pod = watching(stage)
    plugin.report(claim, health_pb2.UNHEALTHY, "the fabric is broken", lasts=600)
    pod.until(lambda: told(pod) == one(stage, claim, "Unhealthy", message="the fabric is broken"))
    plugin.report(claim, health_pb2.HEALTHY, lasts=1)
    pod.until(lambda: nudged(pod) == one(stage, claim, "Unknown"))


def nudged(pod: Pod) -> Any:
    """What became unknown shows with the next status only."""
    pod.nudge()
    return told(pod)


def test_unknown_when_the_driver_is_gone(stage: Stage) -> None:
    plugin, claim, pod = watching(stage)
    plugin.stop()
    pod.until(lambda: nudged(pod) == one(stage, claim, "Unknown"))
    stage.plugin("again").until_registered()


class Hours:
    """What a driver told, and how late it is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changed: list[set[DeviceKey]] = []
        self.health = Health(lambda: self.now, self.changed.append)

    def take(self, *devices: tuple[str, health_pb2.HealthStatus, str, int]) -> None:
        self.health.take(
            "driver",
            [
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name="pool", device_name=name),
                    health=health,
                    message=message,
                    health_check_timeout_seconds=lasts,
                )
                for name, health, message, lasts in devices
            ],
        )

    def of(self, name: str) -> str:
        return self.health.of(DeviceKey("driver", "pool", name)).health


@pytest.mark.parametrize(("lasts", "still"), [(0, STALE), (-5, STALE), (7, 7.0)])
def test_what_is_told_grows_old(lasts: int, still: float) -> None:
    hours = Hours()
    hours.take(("a", health_pb2.HEALTHY, "", lasts))
    hours.now = still
    assert hours.of("a") == "Healthy"
    hours.now = still + 0.1
    assert hours.of("a") == "Unknown"


def test_only_what_differs_is_news() -> None:
    hours = Hours()
    hours.take(("a", health_pb2.HEALTHY, "", 0), ("b", health_pb2.HEALTHY, "", 0))
    hours.now = 20.0
    hours.take(("a", health_pb2.HEALTHY, "", 0), ("b", health_pb2.UNHEALTHY, "hot", 0))
    assert [{key.device for key in change} for change in hours.changed] == [{"a", "b"}, {"b"}]
    hours.now = 45.0
    assert (hours.of("a"), hours.of("b")) == ("Healthy", "Unhealthy")


def test_a_device_is_known_by_its_first_name_and_once() -> None:
    hours = Hours()
    hours.take(("a", health_pb2.UNHEALTHY, "x" * 2000, 0))
    devices = [("driver", Device("pool", "a", cdi_device_ids=["v/c=one", "v/c=two"]))] * 2
    entry = hours.health.entry("claim:c", devices)
    assert [resource["resourceID"] for resource in entry["resources"]] == ["v/c=one"]
    assert entry["resources"][0]["message"] == "x" * 1021 + "..."
