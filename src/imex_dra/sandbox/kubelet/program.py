"""The program: all nodes of a file, until it is told to stop.

    python -m imex_dra.sandbox.kubelet.program nodes.json

The file is a `Settings`; tokens stand in it, so it is for its owner's eyes only. Through the socket that it names
one kubelet can be killed and started, and one machine's power can fail and come back (`sandbox.control`).
"""

import asyncio
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.descriptors import raise_limit
from imex_dra.sandbox.kubelet.certificates import tls
from imex_dra.sandbox.kubelet.client import Switchboard
from imex_dra.sandbox.kubelet.containers import Launcher
from imex_dra.sandbox.kubelet.fleet import Fleet, Machine
from imex_dra.sandbox.kubelet.hollow import Hollow
from imex_dra.sandbox.kubelet.processes import Processes
from imex_dra.sandbox.kubelet.settings import Settings


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT, or until a kubelet fails."""
    switchboard = Switchboard(settings.server, settings.authority)
    fleet = Fleet(
        switchboard,
        settings.nodes,
        launcher=lambda member: _launcher(settings),
        rules=settings.rules,
        tls=_tls(settings),
    )
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    fleet.start()
    try:
        async with _controlled(fleet, settings.control):
            await _first([stopped.wait(), *(machine.wait() for machine in fleet.machines.values())])
    finally:
        await fleet.stop()
        await switchboard.close()


@asynccontextmanager
async def _controlled(fleet: Fleet, socket: Path | None) -> AsyncIterator[None]:
    async def answer(request: Request) -> Any:
        if request.do == "status":
            return {"down": [f"{name}/kubelet" for name, machine in fleet.machines.items() if not machine.runs]}
        if request.node not in fleet.machines:
            raise Rejected(f"there is no node {request.node}: `kubectl get nodes` lists them")
        return await _act(fleet.machines[request.node], request)

    if socket is None:
        yield
    else:
        async with serving(socket, answer):
            yield


async def _act(machine: Machine, request: Request) -> None:
    match request.do:
        case "kill":
            await machine.kill()
        case "start" if not machine.runs:
            machine.start()
        case "power-off":
            await machine.stop()
        case "power-on" if not machine.runs:
            machine.boot(request.options["boot_id"])
        case "start" | "power-on":
            raise Rejected(f"the kubelet of node {request.node} runs already: kill it first")
        case _:
            can = "kill, start, power-off and power-on are known"
            raise Rejected(f"the kubelet of node {request.node} can't {request.do}: {can}")


async def _first(works: list[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


def _tls(settings: Settings) -> ssl.SSLContext | None:
    own = settings.serving
    return tls(own.certificate, own.key, settings.authority) if own else None


def _launcher(settings: Settings) -> Launcher:
    return Hollow() if settings.containers == "hollow" else Processes()


def main() -> None:
    logging.configure("warning")
    if len(sys.argv) != 2:
        raise Misconfigured("name one file with the nodes to run")
    raise_limit()
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings, dec_hook=_path)))


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
