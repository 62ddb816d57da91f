"""The kubelet's device health API: a stream of the health of every device, for the status of pods that use them.

The kubelet opens the stream on the plugin's service socket and forgets a report after `_VALID_FOR` seconds, so
that a plugin that hangs does not look healthy. Unchanged health is therefore sent again.
"""

import time
from collections.abc import AsyncIterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import grpc

from imex_dra.dra.proto import health_pb2

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Since Kubernetes 1.37, and before. The messages are the same."""

_VALID_FOR = 30
REFRESH_PERIOD = 10.0
"""Seconds until unchanged health is sent again."""

_MAX_MESSAGE = 1024


class HealthState(IntEnum):
    UNKNOWN = health_pb2.UNKNOWN
    HEALTHY = health_pb2.HEALTHY
    UNHEALTHY = health_pb2.UNHEALTHY


class DeviceHealth(NamedTuple):
    pool: str
    device: str
    state: HealthState
    message: str = ""


class HealthSource(Protocol):
    def watch_health(self, refresh: float) -> AsyncIterator[Sequence[DeviceHealth]]:
        """All devices: now, at every change, and at least every `refresh` seconds."""


def health_handlers(source: HealthSource) -> list[grpc.GenericRpcHandler]:
    async def watch(
        request: health_pb2.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        async for devices in source.watch_health(REFRESH_PERIOD):
            yield health_pb2.NodeWatchResourcesResponse(devices=[_message(device) for device in devices])

    method: Any = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )
    return [grpc.method_handlers_generic_handler(service, {"NodeWatchResources": method}) for service in SERVICES]


def _message(health: DeviceHealth) -> health_pb2.DeviceHealth:
    return health_pb2.DeviceHealth(
        device=health_pb2.DeviceIdentifier(pool_name=health.pool, device_name=health.device),
        health=health.state.name,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_VALID_FOR,
        message=health.message[:_MAX_MESSAGE],
    )
