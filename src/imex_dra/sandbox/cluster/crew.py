"""The crew: our driver's programs on all nodes, in one process. Run by `imex up`, with a file of settings.

    python -m imex_dra.sandbox.cluster.crew crew.json

They are the programs that pods run, the same coroutines; only nvidia-imex-ctl is not started for each question.
Soft IMEX daemons are processes, as everywhere. A node's program waits for its kubeconfig: the node must exist
before it has a token.
"""

import asyncio
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.daemon.agent import Agent
from imex_dra.hardware.simulated import SimulatedHardware
from imex_dra.imex.files import Files
from imex_dra.imex.link import DaemonState, messages
from imex_dra.kube.client import Client
from imex_dra.node import program as node
from imex_dra.sandbox.cluster import nvidiaimex
from imex_dra.sandbox.cluster.innerctl import InnerCtl
from imex_dra.sandbox.cluster.programs import DIES_WITH_US, Program
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.descriptors import raise_limit

IMEX_NODE, IMEX_DAEMON, NVIDIA_IMEX = "imex-node", "imex-daemon", "nvidia-imex"
_PYTHON = (sys.executable, "-m")
_SERVES_WITHIN = 60.0
_LOOK = 0.1
_REGISTERED = "the kubelet registered the driver"


class Post(Struct, frozen=True):
    """Where one member of the crew works."""

    node: str
    address: str
    root: Path
    kubeconfig: Path


class Settings(Struct, frozen=True):
    posts: list[Post]
    fabric: Path
    logs: Path
    control: Path
    apart: bool = False
    """Every program in a process of its own."""


class Mate:
    """The programs of one node."""

    def __init__(self, post: Post, settings: Settings, threads: Executor) -> None:
        self._post = post
        self._threads = threads
        self._logs = settings.logs
        self._imex, self._ctl = _soft(post, settings.fabric, "daemon"), _soft(post, settings.fabric, "ctl")
        self.programs = {
            IMEX_NODE: self._program(IMEX_NODE, settings, self._node, _node_command(post), self._registered),
            IMEX_DAEMON: self._program(
                IMEX_DAEMON, settings, self._daemon, self._daemon_command(), self._imex_is_ready
            ),
        }

    def start(self) -> None:
        for program in self.programs.values():
            if not program.wanted:
                program.start()

    async def power_off(self) -> None:
        """nvidia-imex first, and killed: it must not say good-bye to its peers."""
        nvidiaimex.send(self._post.root, signal.SIGKILL)
        async with asyncio.TaskGroup() as group:
            for program in self.programs.values():
                group.create_task(program.drop())

    async def act(self, do: str, name: str) -> Any:
        if name == NVIDIA_IMEX:
            return self._act_on_imex(do)
        if name not in self.programs:
            raise Rejected(
                f"a node has no program {name}: it has kubelet, {', '.join(self.programs)}, {NVIDIA_IMEX}"
            )
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
            return nvidiaimex.pid(self._post.root)
        if do not in signals:
            raise Rejected(f"nvidia-imex can't {do}: imex-daemon starts it")
        nvidiaimex.send(self._post.root, signals[do])
        return None

    def _program(self, name: str, settings: Settings, work: Any, argv: Sequence[str], serves: Any) -> Program:
        return Program(
            name,
            self._post.node,
            work=work,
            argv=argv,
            log=self._log(name),
            serves=serves,
            apart=settings.apart,
        )

    def _log(self, name: str) -> Path:
        return self._logs / f"{self._post.node}-{name}.log"

    async def _node(self) -> None:
        post = self._post
        await _until(post.kubeconfig.exists)
        client = Client.connect(IMEX_NODE, post.kubeconfig)
        try:
            await node.run(
                client,
                SimulatedHardware(post.root),
                node=post.node,
                address=post.address,
                kubelet=post.root / "k",
                cdi=post.root / "run/cdi",
                agent=post.root / "run/daemon.sock",
            )
        finally:
            await client.close()

    async def _daemon(self) -> None:
        root = self._post.root
        files = Files(root / "etc/nvidia-imex", root / "hosts")
        ctl = InnerCtl(root, files.config, self._threads)
        agent = Agent(files, root / "etc/nvidia-imex/membership.json", command=self._imex, ctl=ctl)
        await agent.run(root / "run/daemon.sock")

    def _daemon_command(self) -> Sequence[str]:
        return [
            *_PYTHON,
            "imex_dra.cli",
            "daemon",
            f"--node-root={self._post.root}",
            f"--imex={shlex.join(self._imex)}",
            f"--imex-ctl={shlex.join(self._ctl)}",
        ]

    async def _registered(self) -> None:
        """Until the kubelet took the new process in; without a kubelet it would be in vain to wait for long."""
        log = self._log(IMEX_NODE)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SERVES_WITHIN):
                await _until(lambda: log.exists() and _REGISTERED in log.read_text())

    async def _imex_is_ready(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SERVES_WITHIN):
                while not await _says_ready(self._post.root / "run/daemon.sock"):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a file says nothing when it appears
        await asyncio.sleep(_LOOK)


async def _says_ready(socket: Path) -> bool:
    """False if nobody is there, or no longer."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    try:
        async for state in messages(reader, DaemonState):
            if state.state is ImexState.READY:
                return True
    finally:
        writer.close()
    return False


def _node_command(post: Post) -> Sequence[str]:
    return [
        *_PYTHON,
        "imex_dra.cli",
        "node",
        f"--node-name={post.node}",
        f"--address={post.address}",
        f"--node-root={post.root}",
        f"--kubelet-dir={post.root / 'k'}",
        f"--cdi-dir={post.root / 'run/cdi'}",
        f"--kubeconfig={post.kubeconfig}",
    ]


def _soft(post: Post, fabric: Path, program: str) -> Sequence[str]:
    variables = (f"IMEX_NODE_ROOT={post.root}", f"IMEX_FABRIC_DIR={fabric}")
    return ["env", *variables, *DIES_WITH_US, *_PYTHON, f"imex_dra.softimex.{program}"]


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
