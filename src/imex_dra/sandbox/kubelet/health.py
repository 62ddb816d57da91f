"""How allocated devices fare, as their drivers tell it, for the status of the pods that have them.

A plugin that offers `v1alpha1.DRAResourceHealth` is listened to. What it said of a device holds for half a minute
or for as long as it said itself; without news, and when the stream ends, nothing is known any more. As at the real
kubelet, only a change that is told makes a pod's status new; what became unknown shows with the next one.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import structlog
from grpc import aio

from imex_dra.dra.proto import health_pb2
from imex_dra.sandbox.kubelet.ledger import Device

log = structlog.get_logger()

OFFER = "v1alpha1.DRAResourceHealth"
AGAIN = 5.0
STALE = 30.0
_LONGEST_MESSAGE = 1024
_WORDS = {health_pb2.HEALTHY: "Healthy", health_pb2.UNHEALTHY: "Unhealthy"}

Json = dict[str, Any]


class DeviceKey(NamedTuple):
    driver: str
    pool: str
    device: str


class Told(NamedTuple):
    health: str
    message: str
    lasts: float
    at: float = 0.0

    @property
    def content(self) -> tuple[str, str, float]:
        return self.health, self.message, self.lasts


UNKNOWN = Told("Unknown", "", STALE)


class Health:
    def __init__(self, monotonic: Callable[[], float], on_change: Callable[[set[DeviceKey]], None]) -> None:
        self._monotonic = monotonic
        self._on_change = on_change
        self._told: dict[DeviceKey, Told] = {}

    def of(self, key: DeviceKey) -> Told:
        told = self._told.get(key)
        return UNKNOWN if told is None or self._monotonic() - told.at > told.lasts else told

    async def listen(self, driver: str, channel: aio.Channel) -> NoReturn:
        """To one plugin, again whenever its stream ends."""
        watch = channel.unary_stream(
            f"/{OFFER}/NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        while True:
            try:
                async for report in watch(health_pb2.NodeWatchResourcesRequest()):
                    self.take(driver, report.devices)
            except aio.AioRpcError as error:
                log.info("the health of devices is not told", driver=driver, error=error.details())
            finally:
                self._forget(driver)
            await asyncio.sleep(AGAIN)

    def take(self, driver: str, devices: Iterable[health_pb2.DeviceHealth]) -> None:
        fresh = {_key(driver, device): told(device, self._monotonic()) for device in devices}
        changed = {
            key for key, new in fresh.items() if key not in self._told or self._told[key].content != new.content
        }
        self._told |= fresh
        if changed:
            self._on_change(changed)

    def _forget(self, driver: str) -> None:
        self._told = {key: told for key, told in self._told.items() if key.driver != driver}

    def entry(self, resource: str, devices: Iterable[tuple[str, Device]]) -> Json:
        """For `allocatedResourcesStatus`: a device is known by the name that the runtime gets."""
        shown: dict[str, Json] = {}
        for driver, device in devices:
            key = DeviceKey(driver, device.pool_name, device.device_name)
            identity = device.cdi_device_ids[0] if device.cdi_device_ids else "/".join(key)
            now = self.of(key)
            message = {"message": now.message} if now.message else {}
            shown.setdefault(identity, {"resourceID": identity, "health": now.health, **message})
        return {"name": resource, "resources": list(shown.values())}


def told(device: health_pb2.DeviceHealth, now: float) -> Told:
    message = device.message
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[: _LONGEST_MESSAGE - 3]}..."
    lasts = float(device.health_check_timeout_seconds)
    return Told(_WORDS.get(device.health, "Unknown"), message, lasts if lasts > 0 else STALE, now)


def _key(driver: str, device: health_pb2.DeviceHealth) -> DeviceKey:
    return DeviceKey(driver, device.device.pool_name, device.device.device_name)
