"""The program: all nodes of a file, until it is told to stop.

    python -m imex_dra.sandbox.kubelet.program nodes.json

The file is a `Settings`; tokens stand in it, so it is for its owner's eyes only.
"""

import asyncio
import resource
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubelet.client import Switchboard
from imex_dra.sandbox.kubelet.containers import Launcher
from imex_dra.sandbox.kubelet.fleet import Fleet, Member
from imex_dra.sandbox.kubelet.hollow import Hollow
from imex_dra.sandbox.kubelet.processes import Processes


class Settings(Struct, frozen=True):
    server: str
    authority: Path
    nodes: list[Member]
    containers: Literal["hollow", "processes"] = "processes"


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT, or until a kubelet fails."""
    switchboard = Switchboard(settings.server, settings.authority)
    fleet = Fleet(switchboard, settings.nodes, launcher=lambda member: _launcher(settings))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    fleet.start()
    try:
        await _first([stopped.wait(), *(machine.wait() for machine in fleet.machines.values())])
    finally:
        await fleet.stop()
        await switchboard.close()


async def _first(works: list[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


def _launcher(settings: Settings) -> Launcher:
    return Hollow() if settings.containers == "hollow" else Processes()


def _raise_limit() -> None:
    """Each node holds a watch; the soft limit of a shell is made for one program with a few files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    logging.configure("warning")
    if len(sys.argv) != 2:
        raise Misconfigured("name one file with the nodes to run")
    _raise_limit()
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings, dec_hook=_path)))


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
