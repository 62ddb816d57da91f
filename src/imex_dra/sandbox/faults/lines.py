"""All lines of a cluster in one process: a forwarder for each node, told by `lines.sock` how to behave.

A process of its own, so that a cluster that is busy, or a fault that hangs something, delays nobody's requests.

    python -m imex_dra.sandbox.faults.lines settings.json
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.base import logging
from imex_dra.base.errors import Rejected
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.descriptors import raise_limit
from imex_dra.sandbox.faults.conduct import Conduct
from imex_dra.sandbox.faults.interception import Tls
from imex_dra.sandbox.faults.line import Line
from imex_dra.sandbox.kubernetes.certificates import Certificate

ADDRESSES = "addresses"
BEHAVE = "behave"


class Settings(Struct, frozen=True):
    host: str
    port: int
    authority: str
    certificate: str
    key: str
    socket: str
    nodes: tuple[str, ...]


class Lines:
    def __init__(self, settings: Settings) -> None:
        own = Certificate(Path(settings.certificate), Path(settings.key))
        tls = Tls(own, Path(settings.authority))
        self._lines = {node: Line((settings.host, settings.port), tls) for node in settings.nodes}

    async def start(self) -> None:
        for line in self._lines.values():
            await line.start()

    async def stop(self) -> None:
        for line in self._lines.values():
            await line.stop()

    async def answer(self, request: Request) -> Any:
        match request.do:
            case "addresses":
                return {node: line.url for node, line in self._lines.items()}
            case "behave" if request.node in self._lines:
                await self._lines[request.node].behave(msgspec.convert(request.options, type=Conduct))
                return None
        raise Rejected(f"no line can do {request.do!r} for node {request.node!r}")


async def run(settings: Settings) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    lines = Lines(settings)
    await lines.start()
    try:
        async with serving(Path(settings.socket), lines.answer):
            await stopped.wait()
    finally:
        await lines.stop()


def main() -> None:
    logging.configure("warning")
    raise_limit()
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)))


if __name__ == "__main__":
    main()
