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
from imex_dra.sandbox.cluster.crewsettings import CrewNode, CrewSettings
from imex_dra.sandbox.cluster.driver import ImexDaemon, ImexNode
from imex_dra.sandbox.cluster.programs import Program
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.descriptors import raise_limit

NVIDIA_IMEX = "nvidia-imex"


class NodePrograms:
    """The programs of one node."""

    def __init__(self, node: CrewNode, settings: CrewSettings, threads: Executor) -> None:
        self._root = node.root
        works = (ImexNode(node), ImexDaemon(node, settings.fabric, threads))
        self.programs = {
            work.name: Program(
                work, node.name, log=settings.logs / f"{node.name}-{work.name}.log", apart=settings.apart
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
    def __init__(self, settings: CrewSettings) -> None:
        threads = ThreadPoolExecutor(max(1, len(settings.nodes)))
        self._nodes = {node.name: NodePrograms(node, settings, threads) for node in settings.nodes}
        self._control = settings.control

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        for node in self._nodes.values():
            node.start()
        async with serving(self._control, self._answer):
            await stopped.wait()
        async with asyncio.TaskGroup() as group:
            for node in self._nodes.values():
                group.create_task(node.power_off())

    async def _answer(self, request: Request) -> Any:
        if request.do == "status":
            return {"down": self._down()}
        if request.node not in self._nodes:
            raise Rejected(f"there is no node {request.node}")
        node = self._nodes[request.node]
        match request.do:
            case "power-off":
                return await node.power_off()
            case "power-on":
                return node.start()
        return await node.act(request.do, request.program)

    def _down(self) -> list[str]:
        return [
            f"{node}/{name}"
            for node, running in self._nodes.items()
            for name, program in running.programs.items()
            if not program.wanted
        ]


def main() -> None:
    logging.configure("info")
    if len(sys.argv) != 2:
        raise Misconfigured("name one file with the crew's settings")
    raise_limit()
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=CrewSettings, dec_hook=_path)
    asyncio.run(Crew(settings).run())


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
