"""Plugin registration: keeps the registered DRA plugins equal to the sockets in the plugin registry directory.

The directory is polled every `POLL_PERIOD` seconds. The real kubelet uses inotify but reconciles once a second.
Polling costs 20 µs, while a user may have only 128 inotify instances, fewer than the nodes of a large simulation.
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
from imex_sandbox.kubelet.devicehealth import HEALTH_SERVICE
from imex_sandbox.kubelet.plugins import DraPlugins, select_service, unary

log = structlog.get_logger()

POLL_PERIOD = 0.5
GET_INFO_TIMEOUT = 1.0
NOTIFY_TIMEOUT = 5.0
_SERVICE = "pluginregistration.Registration"


class Socket(NamedTuple):
    """Inode and change time distinguish a socket from a later one at the same path."""

    path: Path
    inode: int
    changed_at: int


class Registration(NamedTuple):
    driver: str
    endpoint: str


class PluginWatcher:
    def __init__(self, directory: Path, plugins: DraPlugins) -> None:
        self._directory = directory
        self._plugins = plugins
        self._registrations: dict[Socket, Registration] = {}
        self._failures: dict[Socket, int] = {}
        self._retry_at: dict[Socket, float] = {}
        self._backoff = Backoff(0.5, 120.0)

    async def run(self) -> NoReturn:
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            await self._reconcile(set(find_sockets(self._directory)))
            await asyncio.sleep(POLL_PERIOD)

    async def _reconcile(self, found: set[Socket]) -> None:
        for removed in self._registrations.keys() - found:
            registration = self._registrations.pop(removed)
            log.info("plugin deregistered", driver=registration.driver, endpoint=registration.endpoint)
            await self._plugins.remove(*registration)
        for removed in self._failures.keys() - found:
            del self._failures[removed], self._retry_at[removed]
        now = asyncio.get_running_loop().time()
        # Oldest first: the plugin that is registered last is the one that is called.
        for socket in sorted(found - self._registrations.keys(), key=lambda socket: socket.changed_at):
            if self._retry_at.get(socket, now) <= now:
                await self._try_register(socket)

    async def _try_register(self, socket: Socket) -> None:
        try:
            registration = await self._register(socket)
        except (ImexError, aio.AioRpcError) as error:
            failures = self._failures[socket] = self._failures.get(socket, 0) + 1
            self._retry_at[socket] = asyncio.get_running_loop().time() + self._backoff.delay(failures)
            log.warning("cannot register a plugin", socket=str(socket.path), error=str(error))
        else:
            self._registrations[socket] = registration

    async def _register(self, socket: Socket) -> Registration:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(f"unix:{socket.path}", options=options) as channel:
            get_info = unary(channel, _SERVICE, "GetInfo", registration_pb2.PluginInfo)
            info = await get_info(registration_pb2.InfoRequest(), timeout=GET_INFO_TIMEOUT)
            endpoint = info.endpoint or str(socket.path)
            try:
                self._add(info, endpoint)
            except ImexError as error:
                await _notify(channel, f"RegisterPlugin error -- {error}")
                raise
            try:
                await _notify(channel)
            except aio.AioRpcError:
                await self._plugins.remove(info.name, endpoint)
                raise
            return Registration(info.name, endpoint)

    def _add(self, info: registration_pb2.PluginInfo, endpoint: str) -> None:
        """Raises ImexError with the message that the plugin receives."""
        if info.type != "DRAPlugin":
            raise Rejected(f"no handler registered for plugin type: {info.type} at socket {endpoint}")
        try:
            service = select_service(list(info.supported_versions))
        except ImexError as error:
            plugin = f"DRA driver plugin {info.name} at endpoint {endpoint}"
            message = f"plugin validation failed with err: invalid supported gRPC versions of {plugin}: {error}"
            raise type(error)(message) from error
        try:
            reports_health = HEALTH_SERVICE in info.supported_versions
            self._plugins.add(info.name, endpoint, service, reports_health=reports_health)
        except ImexError as error:
            raise type(error)(f"plugin registration failed with err: {error}") from error


def find_sockets(directory: Path) -> list[Socket]:
    """Includes subdirectories; hidden files are ignored."""
    found = []
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            found.append(Socket(path, status.st_ino, status.st_ctime_ns))
    return found


async def _notify(channel: aio.Channel, error: str = "") -> None:
    notify = unary(channel, _SERVICE, "NotifyRegistrationStatus", registration_pb2.RegistrationStatusResponse)
    status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    await notify(status, timeout=NOTIFY_TIMEOUT)
