"""Plugins come and go as sockets in a directory; this keeps the node's plugins equal to what lies there.

The directory is read every `PERIOD` seconds. The real kubelet is told by inotify but acts on it once a second;
reading a directory costs twenty microseconds, and a user may have only 128 inotify instances.
"""

import asyncio
import stat
from pathlib import Path
from typing import NamedTuple, NoReturn

import structlog
from grpc import aio

from imex_dra.base.errors import ImexError, Rejected
from imex_dra.dra.proto import registration_pb2
from imex_dra.kube.backoff import Backoff
from imex_dra.sandbox.kubelet.health import OFFER
from imex_dra.sandbox.kubelet.plugins import Plugins, chosen_service, unary

log = structlog.get_logger()

PERIOD = 0.5
INFO_LIMIT = 1.0
NOTIFY_LIMIT = 5.0
_SERVICE = "pluginregistration.Registration"


class Socket(NamedTuple):
    """A socket that was taken away and made again under the same name is another one."""

    path: Path
    inode: int
    made: int


class Registered(NamedTuple):
    driver: str
    endpoint: str


class Registry:
    def __init__(self, directory: Path, plugins: Plugins) -> None:
        self._directory = directory
        self._plugins = plugins
        self._registered: dict[Socket, Registered] = {}
        self._failures: dict[Socket, int] = {}
        self._not_before: dict[Socket, float] = {}
        self._backoff = Backoff(0.5, 120.0)

    async def run(self) -> NoReturn:
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            await self._reconcile(set(sockets(self._directory)))
            await asyncio.sleep(PERIOD)

    async def _reconcile(self, found: set[Socket]) -> None:
        for gone in self._registered.keys() - found:
            registered = self._registered.pop(gone)
            log.info("a plugin is gone", driver=registered.driver, endpoint=registered.endpoint)
            await self._plugins.remove(*registered)
        for forgotten in self._failures.keys() - found:
            del self._failures[forgotten], self._not_before[forgotten]
        now = asyncio.get_running_loop().time()
        for socket in sorted(found - self._registered.keys(), key=lambda socket: socket.made):
            if self._not_before.get(socket, now) <= now:
                await self._attempt(socket)

    async def _attempt(self, socket: Socket) -> None:
        try:
            registered = await self._register(socket)
        except (ImexError, aio.AioRpcError) as error:
            failures = self._failures[socket] = self._failures.get(socket, 0) + 1
            self._not_before[socket] = asyncio.get_running_loop().time() + self._backoff.delay(failures)
            log.warning("a plugin was not registered", socket=str(socket.path), error=str(error))
        else:
            self._registered[socket] = registered

    async def _register(self, socket: Socket) -> Registered:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(f"unix:{socket.path}", options=options) as channel:
            ask = unary(channel, _SERVICE, "GetInfo", registration_pb2.PluginInfo)
            info = await ask(registration_pb2.InfoRequest(), timeout=INFO_LIMIT)
            endpoint = info.endpoint or str(socket.path)
            try:
                self._accept(info, endpoint)
            except ImexError as error:
                await _notify(channel, f"RegisterPlugin error -- {error}")
                raise
            try:
                await _notify(channel)
            except aio.AioRpcError:
                await self._plugins.remove(info.name, endpoint)
                raise
            return Registered(info.name, endpoint)

    def _accept(self, info: registration_pb2.PluginInfo, endpoint: str) -> None:
        """Raises with the words that the plugin is told."""
        if info.type != "DRAPlugin":
            raise Rejected(f"no handler registered for plugin type: {info.type} at socket {endpoint}")
        try:
            service = chosen_service(list(info.supported_versions))
        except ImexError as error:
            whose = f"DRA driver plugin {info.name} at endpoint {endpoint}"
            words = f"plugin validation failed with err: invalid supported gRPC versions of {whose}: {error}"
            raise type(error)(words) from error
        try:
            self._plugins.add(info.name, endpoint, service, tells_health=OFFER in info.supported_versions)
        except ImexError as error:
            raise type(error)(f"plugin registration failed with err: {error}") from error


def sockets(directory: Path) -> list[Socket]:
    """Also in directories below; names with a dot in front are nobody's."""
    found = []
    for path in directory.rglob("*"):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(about.st_mode) and not path.name.startswith("."):
            found.append(Socket(path, about.st_ino, about.st_ctime_ns))
    return found


async def _notify(channel: aio.Channel, error: str = "") -> None:
    tell = unary(channel, _SERVICE, "NotifyRegistrationStatus", registration_pb2.RegistrationStatusResponse)
    status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    await tell(status, timeout=NOTIFY_LIMIT)
