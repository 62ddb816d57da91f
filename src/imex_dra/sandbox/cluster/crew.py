"""The crew: our driver's programs on all nodes, in one process. Run by `imex up`, with a file of settings.

    python -m imex_dra.sandbox.cluster.crew crew.json

Soft IMEX daemons are processes, as everywhere, and so is a program that has been set apart (`programs`).
"""

import asyncio
import signal
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.sandbox.cluster import nvidiaimex
from imex_dra.sandbox.cluster.posts import Post, Settings
from imex_dra.sandbox.cluster.programs import Program
from imex_dra.sandbox.cluster.works import DaemonWork, NodeWork
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.descriptors import raise_limit

NVIDIA_IMEX = "nvidia-imex"


class Mate:
    """The programs of one node."""

    def __init__(self, post: Post, settings: Settings, threads: Executor) -> None:
        self._root = post.root
        works = (NodeWork(post), DaemonWork(post, settings.fabric, threads))
        self.programs = {
            work.name: Program(
                work, post.node, log=settings.logs / f"{post.node}-{work.name}.log", apart=settings.apart
            )
            for work in works
        }

    def start(self) -> None:
        for program in self.programs.values():
            if not program.wanted:
                program.start()

    async def power_off(self) -> None:
        """nvidia-imex first, and killed: it must not say good-bye to its peers."""
        nvidiaimex.send(self._root, signal.SIGKILL)
        async with asyncio.TaskGroup() as group:
            for program in self.programs.values():
                group.create_task(program.drop())

    async def act(self, do: str, name: str) -> Any:
        if name == NVIDIA_IMEX:
            return self._act_on_imex(do)
        if name not in self.programs:
            known = ", ".join(["kubelet", *self.programs, NVIDIA_IMEX])
            raise Rejected(f"a node has no program {name}: it has {known}")
        program = self.programs[name]
        match do:
            case "kill":
                await program.kill()
            case "start":
                program.start()
            case "hang":
                await program.set_apart()
                program.signal(signal.SIGSTOP)
            case "resume":
                program.signal(signal.SIGCONT)
            case "pid":
                await program.set_apart()
                return program.pid
            case _:
                raise Rejected(f"{name} can't {do}")
        return None

    def _act_on_imex(self, do: str) -> Any:
        signals = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "resume": signal.SIGCONT}
        if do == "pid":
            return nvidiaimex.pid(self._root)
        if do not in signals:
            raise Rejected(f"nvidia-imex can't {do}: imex-daemon starts it")
        nvidiaimex.send(self._root, signals[do])
        return None


class Crew:
    def __init__(self, settings: Settings) -> None:
        threads = ThreadPoolExecutor(max(1, len(settings.posts)))
        self._mates = {post.node: Mate(post, settings, threads) for post in settings.posts}
        self._control = settings.control

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        for mate in self._mates.values():
            mate.start()
        async with serving(self._control, self._answer):
            await stopped.wait()
        async with asyncio.TaskGroup() as group:
            for mate in self._mates.values():
                group.create_task(mate.power_off())

    async def _answer(self, request: Request) -> Any:
        if request.do == "status":
            return {"down": self._down()}
        if request.node not in self._mates:
            raise Rejected(f"there is no node {request.node}")
        mate = self._mates[request.node]
        match request.do:
            case "power-off":
                return await mate.power_off()
            case "power-on":
                return mate.start()
        return await mate.act(request.do, request.program)

    def _down(self) -> list[str]:
        return [
            f"{node}/{name}"
            for node, mate in self._mates.items()
            for name, program in mate.programs.items()
            if not program.wanted
        ]


def main() -> None:
    logging.configure("info")
    if len(sys.argv) != 2:
        raise Misconfigured("name one file with the crew's posts")
    raise_limit()
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings, dec_hook=_path)
    asyncio.run(Crew(settings).run())


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
