"""One process that runs the driver's programs of all nodes. `imex up` starts it with a settings file:

    python -m imex_sandbox.cluster.drivers drivers.json

`imex node` is a task of this process unless it was moved to a process of its own (`programs`). nvidia-imex and its
supervisor are always processes.
"""

import asyncio
import os
import signal
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.cluster.imexprograms import (
    NVIDIA_IMEX,
    ImexNode,
    ImexSupervisor,
    SharedAnswers,
    nvidia_imex_pid,
)
from imex_sandbox.cluster.programs import Program
from imex_sandbox.cluster.settings import DriverNode, DriverSettings
from imex_sandbox.control import Request, serving
from imex_sandbox.process import raise_file_limit


class NodePrograms:
    """The programs of one node."""

    def __init__(
        self, node: DriverNode, settings: DriverSettings, threads: Executor, domains: SharedAnswers
    ) -> None:
        self._root = node.root
        imex_node = ImexNode(node, settings.fabric, threads, domains)
        supervisor = ImexSupervisor(node, settings.fabric)
        programs = ((imex_node, None if settings.processes else imex_node.run), (supervisor, None))
        self.programs = {
            entrypoint.name: Program(
                entrypoint,
                node.name,
                log=settings.logs / f"{node.name}-{entrypoint.name}.log",
                task=task,
            )
            for entrypoint, task in programs
        }

    def start(self) -> None:
        for program in self.programs.values():
            if not program.started:
                program.start()

    async def power_off(self) -> None:
        async with asyncio.TaskGroup() as group:
            for program in self.programs.values():
                group.create_task(program.stop_at_once())

    async def act(self, action: str, name: str) -> Any:
        if name == NVIDIA_IMEX:
            return self._act_on_nvidia_imex(action)
        if name not in self.programs:
            known = ", ".join(["kubelet", *self.programs, NVIDIA_IMEX])
            raise Rejected(f"a node has no program {name}: its programs are {known}")
        program = self.programs[name]
        match action:
            case "kill":
                await program.kill()
            case "start":
                program.start()
            case "hang":
                await program.move_to_process()
                program.signal(signal.SIGSTOP)
            case "resume":
                program.signal(signal.SIGCONT)
            case "pid":
                await program.move_to_process()
                return program.pid
            case _:
                raise Rejected(f"{name} does not support {action}: use kill, start, hang, resume or pid")
        return None

    def _act_on_nvidia_imex(self, action: str) -> Any:
        signals = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "resume": signal.SIGCONT}
        if action == "pid":
            return nvidia_imex_pid(self._root)
        if action not in signals:
            raise Rejected(f"{NVIDIA_IMEX} does not support {action}: its supervisor starts it")
        with suppress(Rejected, ProcessLookupError):
            os.kill(nvidia_imex_pid(self._root), signals[action])
        return None


class Drivers:
    def __init__(self, settings: DriverSettings) -> None:
        threads, domains = ThreadPoolExecutor(max(1, len(settings.nodes))), SharedAnswers()
        self._nodes = {node.name: NodePrograms(node, settings, threads, domains) for node in settings.nodes}
        self._socket = settings.socket

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        for node in self._nodes.values():
            node.start()
        async with serving(self._socket, self._answer):
            await stopped.wait()
        async with asyncio.TaskGroup() as group:
            for node in self._nodes.values():
                group.create_task(node.power_off())

    async def _answer(self, request: Request) -> Any:
        if request.action == "status":
            return {"down": self._down()}
        if request.node not in self._nodes:
            raise Rejected(f"there is no node {request.node}: `kubectl get nodes` lists the nodes")
        node = self._nodes[request.node]
        match request.action:
            case "power-off":
                return await node.power_off()
            case "power-on":
                return node.start()
        return await node.act(request.action, request.program)

    def _down(self) -> list[str]:
        return [
            f"{name}/{program.name}"
            for name, node in self._nodes.items()
            for program in node.programs.values()
            if not program.started
        ]


def main() -> None:
    logging.configure("info")
    if len(sys.argv) != 2:
        raise Misconfigured("expected one argument: the settings file of the drivers")
    raise_file_limit()
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=DriverSettings, dec_hook=_path)
    asyncio.run(Drivers(settings).run())


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
