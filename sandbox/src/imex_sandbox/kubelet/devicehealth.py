"""The health of allocated devices, as their drivers report it, for `allocatedResourcesStatus` in pod status.

A plugin that offers `v1alpha1.DRAResourceHealth` is watched. A report is valid for 30 s, or for the timeout that
it carries. Without a valid report, and after the stream ends, the health is Unknown. As in the real kubelet, only
a report that differs from the last one triggers a status update; an expired report shows with the next update.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

import structlog
from grpc import aio

from imex_dra.dra.proto import health_pb2
from imex_sandbox.kubelet.checkpoint import Device
from imex_sandbox.kubelet.podstate import Json

log = structlog.get_logger()

HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
RECONNECT_DELAY = 5.0
DEFAULT_TIMEOUT = 30.0
_MAX_MESSAGE = 1024
_HEALTH = {health_pb2.HEALTHY: "Healthy", health_pb2.UNHEALTHY: "Unhealthy"}


class DeviceKey(NamedTuple):
    driver: str
    pool: str
    device: str


class HealthReport(NamedTuple):
    health: str
    message: str
    timeout: float
    received_at: float = 0.0

    def differs(self, other: "HealthReport") -> bool:
        return self._replace(received_at=0.0) != other._replace(received_at=0.0)


UNKNOWN = HealthReport("Unknown", "", DEFAULT_TIMEOUT)


class DeviceHealthCache:
    def __init__(self, monotonic: Callable[[], float], on_change: Callable[[set[DeviceKey]], None]) -> None:
        self._monotonic = monotonic
        self._on_change = on_change
        self._reports: dict[DeviceKey, HealthReport] = {}

    def get(self, key: DeviceKey) -> HealthReport:
        report = self._reports.get(key)
        expired = report is not None and self._monotonic() - report.received_at > report.timeout
        return UNKNOWN if report is None or expired else report

    async def watch(self, driver: str, channel: aio.Channel) -> NoReturn:
        """Watches one plugin, and reconnects whenever the stream ends."""
        watch = channel.unary_stream(
            f"/{HEALTH_SERVICE}/NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        while True:
            try:
                async for response in watch(health_pb2.NodeWatchResourcesRequest()):
                    self.update(driver, response.devices)
            except aio.AioRpcError as error:
                log.info("device health stream ended", driver=driver, error=error.details())
            finally:
                self._clear(driver)
            await asyncio.sleep(RECONNECT_DELAY)

    def update(self, driver: str, devices: Iterable[health_pb2.DeviceHealth]) -> None:
        fresh = {_key(driver, device): _report(device, self._monotonic()) for device in devices}
        changed = {
            key for key, new in fresh.items() if key not in self._reports or new.differs(self._reports[key])
        }
        self._reports |= fresh
        if changed:
            self._on_change(changed)

    def _clear(self, driver: str) -> None:
        self._reports = {key: report for key, report in self._reports.items() if key.driver != driver}

    def resource_status(self, name: str, devices: Iterable[tuple[str, Device]]) -> Json:
        """An entry of `allocatedResourcesStatus`, which identifies a device by its first CDI device ID, if any."""
        resources: dict[str, Json] = {}
        for driver, device in devices:
            key = DeviceKey(driver, device.pool_name, device.device_name)
            resource_id = device.cdi_device_ids[0] if device.cdi_device_ids else "/".join(key)
            report = self.get(key)
            message = {"message": report.message} if report.message else {}
            resources.setdefault(resource_id, {"resourceID": resource_id, "health": report.health, **message})
        return {"name": name, "resources": list(resources.values())}


def _report(device: health_pb2.DeviceHealth, now: float) -> HealthReport:
    message = device.message
    if len(message) > _MAX_MESSAGE:
        message = f"{message[: _MAX_MESSAGE - 3]}..."
    timeout = float(device.health_check_timeout_seconds)
    return HealthReport(
        _HEALTH.get(device.health, "Unknown"), message, timeout if timeout > 0 else DEFAULT_TIMEOUT, now
    )


def _key(driver: str, device: health_pb2.DeviceHealth) -> DeviceKey:
    return DeviceKey(driver, device.device.pool_name, device.device.device_name)
