"""One process that runs the proxies of all nodes, and the handle by which the cluster controls it.

A process of its own, so that neither a busy cluster nor a program that hangs delays the nodes' requests.

    python -m imex_sandbox.proxy.server proxy.json
"""

import asyncio
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from imex_dra.base import logging
from imex_dra.base.errors import Rejected, Unavailable
from imex_dra.base.files import write_atomically
from imex_sandbox.control import Request, ask, ask_async, serving
from imex_sandbox.kubernetes.certificates import Certificate
from imex_sandbox.kubernetes.embedded import AnyControlPlane
from imex_sandbox.process import Process, raise_file_limit
from imex_sandbox.proxy.behavior import Behavior
from imex_sandbox.proxy.interceptor import Tls
from imex_sandbox.proxy.nodeproxy import HOST, NodeProxy

_URLS = "urls"
_SET_BEHAVIOR = "set-behavior"
_READY_WITHIN = 60.0


class Settings(Struct, frozen=True):
    host: str
    port: int
    authority: str
    certificate: str
    key: str
    socket: str
    nodes: tuple[str, ...]


class ProxyServer:
    """Runs in its own process; serves the requests of a `ProxyProcess`."""

    def __init__(self, settings: Settings) -> None:
        certificate = Certificate(Path(settings.certificate), Path(settings.key))
        tls = Tls(certificate, Path(settings.authority))
        self._proxies = {node: NodeProxy((settings.host, settings.port), tls) for node in settings.nodes}

    async def start(self) -> None:
        for proxy in self._proxies.values():
            await proxy.start()

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()

    async def answer(self, request: Request) -> Any:
        if request.action == _URLS:
            return {node: proxy.url for node, proxy in self._proxies.items()}
        if request.action != _SET_BEHAVIOR:
            raise Rejected(f"the proxy does not know the action {request.action!r}")
        if request.node not in self._proxies:
            raise Rejected(f"there is no proxy for node {request.node!r}: `kubectl get nodes` lists the nodes")
        behavior = msgspec.convert(request.options, type=Behavior)
        return await self._proxies[request.node].set_behavior(behavior)


class ProxyProcess:
    """Starts the process before any program of a node starts, so that all requests of a node pass its proxy."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._socket = directory / "proxy.sock"
        self._settings = directory / "proxy.json"
        self.process = Process("proxy", [sys.executable, "-m", __name__, self._settings], log=log)

    def start(self, control_plane: AnyControlPlane, nodes: Iterable[str]) -> Mapping[str, str]:
        """Return the URL of the API server for each node. Call it from the main thread."""
        self.launch(control_plane, nodes)
        return self.until_ready()

    def launch(self, control_plane: AnyControlPlane, nodes: Iterable[str]) -> None:
        """The control plane need not be ready yet."""
        write_atomically(self._settings, msgspec.json.encode(self._settings_for(control_plane, nodes)))
        self.process.start()

    def until_ready(self) -> Mapping[str, str]:
        self.process.until(lambda: bool(self._urls()), within=_READY_WITHIN)
        return self._urls()

    def stop(self) -> None:
        self.process.stop(within=0)

    async def set_behavior(self, node: str, options: dict[str, Any]) -> None:
        """`options` are the fields of a `Behavior`."""
        await ask_async(self._socket, Request(_SET_BEHAVIOR, node, options=options))

    def _settings_for(self, control_plane: AnyControlPlane, nodes: Iterable[str]) -> Settings:
        certificate = control_plane.authority.server("proxy", [f"IP:{HOST}"])
        target = urlsplit(control_plane.url)
        return Settings(
            host=target.hostname or HOST,
            port=target.port or 443,
            authority=str(control_plane.authority.certificate),
            certificate=str(certificate.certificate),
            key=str(certificate.key),
            socket=str(self._socket),
            nodes=tuple(nodes),
        )

    def _urls(self) -> dict[str, str]:
        """Empty until the process serves requests."""
        with suppress(Unavailable):
            urls: dict[str, str] = ask(self._socket, Request(_URLS))
            return urls
        return {}


async def run(settings: Settings) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = ProxyServer(settings)
    await server.start()
    try:
        async with serving(Path(settings.socket), server.answer):
            await stopped.wait()
    finally:
        await server.stop()


def main() -> None:
    logging.configure("warning")
    raise_file_limit()
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)))


if __name__ == "__main__":
    main()
