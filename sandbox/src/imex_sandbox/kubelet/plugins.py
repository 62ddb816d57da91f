"""The registered DRA plugins: which one to call for a driver, and when to delete a driver's ResourceSlices.

If a driver has several plugins, the newest connected one is called, so that a rolling update has no gap. When the
last connection to a driver is lost, its ResourceSlices of this node are deleted after `WIPE_DELAY` seconds, unless
a plugin reconnects.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.proto import dra_pb2

CALL_TIMEOUT = 45.0
WIPE_DELAY = 30.0
SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""Supported versions and their gRPC services, newest first. The messages are the same."""

WipeSlices = Callable[[str], Awaitable[None]]
WatchHealth = Callable[[str, aio.Channel], Awaitable[None]]


def select_service(offered: list[str]) -> str:
    """The first version on the plugin's list that is supported."""
    if not offered:
        raise Rejected("empty list of supported gRPC services (aka supported versions)")
    for service in offered:
        if service in SERVICES:
            return service
    raise Rejected(
        f"none of services supported by the plugin ({_go_quoted(offered)}) are supported by the kubelet "
        f"({_go_quoted(list(SERVICES))})"
    )


class DraPlugin:
    def __init__(self, driver: str, endpoint: str, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.connected = False
        self._service = SERVICES[service]
        # A local pool: gRPC would otherwise reuse the failed connection for a new socket at the same path.
        self.channel = aio.insecure_channel(
            f"unix:{endpoint}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 2000)],
        )

    async def prepare(self, claims: list[dra_pb2.Claim]) -> dra_pb2.NodePrepareResourcesResponse:
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        response: dra_pb2.NodePrepareResourcesResponse = await self._call(
            "NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse
        )
        return response

    async def unprepare(self, claims: list[dra_pb2.Claim]) -> dra_pb2.NodeUnprepareResourcesResponse:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        response: dra_pb2.NodeUnprepareResourcesResponse = await self._call(
            "NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse
        )
        return response

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        try:
            return await unary(self.channel, self._service, method, response)(request, timeout=CALL_TIMEOUT)
        except aio.AioRpcError as error:
            code = error.code().name.title().replace("_", "")
            details = "context deadline exceeded" if code == "DeadlineExceeded" else error.details()
            raise NotYet(f"{method}: rpc error: code = {code} desc = {details}") from error
        except asyncio.CancelledError:
            # gRPC raises CancelledError also when the channel is closed during a call.
            if _is_cancelling():
                raise
            closing = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise NotYet(f"{method}: {closing}") from None


class DraPlugins:
    def __init__(self, wipe_slices: WipeSlices, watch_health: WatchHealth) -> None:
        self._wipe_slices = wipe_slices
        self._watch_health = watch_health
        self._plugins: dict[str, list[DraPlugin]] = {}
        self._watches: dict[DraPlugin, list[asyncio.Task[None]]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}

    def get(self, driver: str) -> DraPlugin:
        plugins = self._plugins.get(driver)
        if not plugins:
            raise NotYet(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(plugins) if plugin.connected), plugins[-1])

    def add(self, driver: str, endpoint: str, service: str, *, reports_health: bool = False) -> None:
        if any(plugin.endpoint == endpoint for plugin in self._plugins.get(driver, ())):
            raise Rejected(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        plugin = DraPlugin(driver, endpoint, service)
        self._plugins.setdefault(driver, []).append(plugin)
        self._watches[plugin] = [asyncio.create_task(self._watch_connection(plugin))]
        if reports_health:
            self._watches[plugin].append(asyncio.ensure_future(self._watch_health(driver, plugin.channel)))
        self._schedule_wipe(driver)

    async def remove(self, driver: str, endpoint: str) -> None:
        plugins = self._plugins.get(driver, [])
        for plugin in [plugin for plugin in plugins if plugin.endpoint == endpoint]:
            plugins.remove(plugin)
            for task in self._watches.pop(plugin):
                task.cancel()
            await plugin.channel.close()
        self._schedule_wipe(driver)

    async def close(self) -> None:
        tasks = [*(task for tasks in self._watches.values() for task in tasks), *self._wipes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for plugins in self._plugins.values():
            for plugin in plugins:
                await plugin.channel.close()

    async def _watch_connection(self, plugin: DraPlugin) -> None:
        """Keeps `connected` up to date and reconnects whenever the connection is lost."""
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.connected = state is grpc.ChannelConnectivity.READY
            self._schedule_wipe(plugin.driver)
            await plugin.channel.wait_for_state_change(state)

    def _schedule_wipe(self, driver: str) -> None:
        """Starts the delay if the driver has no connected plugin, and cancels it if it has one."""
        pending = self._wipes.get(driver)
        if any(plugin.connected for plugin in self._plugins.get(driver, ())):
            if pending is not None:
                pending.cancel()
                del self._wipes[driver]
        elif pending is None:
            self._wipes[driver] = asyncio.create_task(self._wipe_after_delay(driver))

    async def _wipe_after_delay(self, driver: str) -> None:
        await asyncio.sleep(WIPE_DELAY)
        await self._wipe_slices(driver)
        del self._wipes[driver]


def unary(channel: aio.Channel, service: str, method: str, response: Any) -> Any:
    return channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _go_quoted(words: list[str]) -> str:
    return "[" + " ".join(f'"{word}"' for word in words) + "]"
