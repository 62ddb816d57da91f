"""The DRA plugins of a node: who serves which driver, and what becomes of a driver's slices when nobody does.

Of several plugins of a driver the newest that is connected is called, so that an update finds no gap. When the
last connection of a driver is lost, its ResourceSlices on this node go after `WIPE_DELAY` seconds, unless it
comes back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc import aio

from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.proto import dra_pb2

log = structlog.get_logger()

CALL_LIMIT = 45.0
WIPE_DELAY = 30.0
SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""As plugins announce them, and as they are called on the wire; newest first. The messages are the same."""

Wipe = Callable[[str], Awaitable[None]]
Listen = Callable[[str, aio.Channel], Awaitable[None]]


def chosen_service(offered: list[str]) -> str:
    """The first of the plugin's own list that we know."""
    if not offered:
        raise Rejected("empty list of supported gRPC services (aka supported versions)")
    for service in offered:
        if service in SERVICES:
            return service
    raise Rejected(
        f"none of services supported by the plugin ({_go_quoted(offered)}) are supported by the kubelet "
        f"({_go_quoted(list(SERVICES))})"
    )


class Plugin:
    def __init__(self, driver: str, endpoint: str, service: str, *, call_limit: float = CALL_LIMIT) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.connected = False
        self._service = SERVICES[service]
        self._limit = call_limit
        # A pool of its own: otherwise a later socket of the same path would be taken for the one that failed.
        self.channel = aio.insecure_channel(
            f"unix:{endpoint}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 2000)],
        )

    async def prepare(self, claims: list[dra_pb2.Claim]) -> dra_pb2.NodePrepareResourcesResponse:
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        answer: dra_pb2.NodePrepareResourcesResponse = await self._call(
            "NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse
        )
        return answer

    async def unprepare(self, claims: list[dra_pb2.Claim]) -> dra_pb2.NodeUnprepareResourcesResponse:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        answer: dra_pb2.NodeUnprepareResourcesResponse = await self._call(
            "NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse
        )
        return answer

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        try:
            return await unary(self.channel, self._service, method, answer)(request, timeout=self._limit)
        except aio.AioRpcError as error:
            code = error.code().name.title().replace("_", "")
            why = "context deadline exceeded" if code == "DeadlineExceeded" else error.details()
            raise NotYet(f"{method}: rpc error: code = {code} desc = {why}") from error
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            closing = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise NotYet(f"{method}: {closing}") from None


class Plugins:
    def __init__(
        self, wipe: Wipe, listen: Listen, *, wipe_delay: float = WIPE_DELAY, call_limit: float = CALL_LIMIT
    ) -> None:
        """`listen` hears of a plugin's devices, if the plugin tells of them."""
        self._wipe = wipe
        self._listen = listen
        self._delay = wipe_delay
        self._limit = call_limit
        self._plugins: dict[str, list[Plugin]] = {}
        self._watchers: dict[Plugin, list[asyncio.Task[None]]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}

    def get(self, driver: str) -> Plugin:
        plugins = self._plugins.get(driver)
        if not plugins:
            raise NotYet(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(plugins) if plugin.connected), plugins[-1])

    def add(self, driver: str, endpoint: str, service: str, *, tells_health: bool = False) -> None:
        if any(plugin.endpoint == endpoint for plugin in self._plugins.get(driver, ())):
            raise Rejected(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        plugin = Plugin(driver, endpoint, service, call_limit=self._limit)
        self._plugins.setdefault(driver, []).append(plugin)
        self._watchers[plugin] = [asyncio.create_task(self._follow(plugin))]
        if tells_health:
            self._watchers[plugin].append(asyncio.ensure_future(self._listen(driver, plugin.channel)))
        self._review(driver)

    async def remove(self, driver: str, endpoint: str) -> None:
        plugins = self._plugins.get(driver, [])
        for plugin in [plugin for plugin in plugins if plugin.endpoint == endpoint]:
            plugins.remove(plugin)
            for task in self._watchers.pop(plugin):
                task.cancel()
            await plugin.channel.close()
        self._review(driver)

    async def close(self) -> None:
        tasks = [*(task for tasks in self._watchers.values() for task in tasks), *self._wipes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for plugins in self._plugins.values():
            for plugin in plugins:
                await plugin.channel.close()

    async def _follow(self, plugin: Plugin) -> None:
        """Keeps `connected` true to the connection, and asks for a new one whenever it is lost."""
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.connected = state is grpc.ChannelConnectivity.READY
            self._review(plugin.driver)
            await plugin.channel.wait_for_state_change(state)

    def _review(self, driver: str) -> None:
        pending = self._wipes.get(driver)
        if any(plugin.connected for plugin in self._plugins.get(driver, ())):
            if pending is not None:
                pending.cancel()
                del self._wipes[driver]
        elif pending is None:
            self._wipes[driver] = asyncio.create_task(self._wipe_later(driver))

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._delay)
        await self._wipe(driver)
        del self._wipes[driver]


def unary(channel: aio.Channel, service: str, method: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


def _is_being_cancelled() -> bool:
    """Whether somebody ends this task; gRPC raises the same error when the channel closes under a call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _go_quoted(words: list[str]) -> str:
    return "[" + " ".join(f'"{word}"' for word in words) + "]"
