"""A simulated node for the agent: its root directory, its address in 127/8, and a client of the agent's socket."""

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState
from imex_dra.daemon.agent import Agent
from imex_dra.daemon.plan import PollIntervals
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.files import ImexFiles
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.memberlist import MemberList
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedGpu
from tests.waiting import until_async

PARTITION = "7b968a6d.1"
HARDWARE = HardwareFile(
    Fabric(FabricState.OK), PARTITION, "580.95.05", 2048, "boot-1", gpus=(SimulatedGpu("GPU-0", "GB200"),)
)
KILLED_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


class Rack:
    """Directories and addresses of its own, so that concurrent test runs on one machine do not collide."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        choice = random.SystemRandom()
        self.net = f"127.{choice.randrange(100, 250)}.{choice.randrange(1, 250)}"
        (self.directory / "f").mkdir(mode=0o700)

    def close(self) -> None:
        shutil.rmtree(self.directory)

    def member_list(self, own: int, *indexes: int, generation: int = 1, **facts: Any) -> MemberList:
        """Members at these indexes, each at the address of its number; `addresses` overrides some."""
        addresses = {str(index): self.address(index) for index in indexes} | facts.pop("addresses", {})
        return MemberList(
            partition=facts.get("partition", PARTITION),
            generation=generation,
            max_nodes=4,
            name_format="imex-0a1b2c3d-%03d",
            addresses=addresses,
            own_index=own,
            own_address=addresses[str(own)],
        )

    def address(self, number: int) -> str:
        return f"{self.net}.{number + 10}"


class SimulatedNode:
    def __init__(self, rack: Rack, number: int) -> None:
        self.rack = rack
        self.root = NodeRoot(rack.directory / f"n{number}")
        self.root.make(HARDWARE, address=rack.address(number))
        self.socket = self.root.daemon_socket
        self.hosts = self.root.path / "hosts"
        self.config_dir = self.root.path / "etc/nvidia-imex"
        self.member_list_file = self.config_dir / "member-list.json"

    @property
    def environment(self) -> dict[str, str]:
        return {"IMEX_NODE_ROOT": str(self.root.path), "IMEX_FABRIC_DIR": str(self.rack.directory / "f")}

    @property
    def imex_pid(self) -> int:
        """The PID of the nvidia-imex that holds the node's only session."""
        return int((self.root.path / "run/imex.lock").read_text())

    def soft_imex(self, program: str) -> Sequence[str]:
        variables = (f"{name}={value}" for name, value in self.environment.items())
        return [*KILLED_WITH_PARENT, "env", *variables, sys.executable, "-m", f"imex_sandbox.softimex.{program}"]

    def agent(self, *, command: Sequence[str] = (), ctl_command: Sequence[str] = (), **options: Any) -> Agent:
        files = ImexFiles(self.config_dir, self.hosts)
        ctl = ImexCtl(ctl_command or self.soft_imex("ctl"), files.config)
        intervals = PollIntervals(starting=0.1, connecting=0.3, steady=1.0)
        return Agent(files, ctl, command or self.soft_imex("daemon"), poll_intervals=intervals, **options)

    @asynccontextmanager
    async def running_agent(self, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.agent(**options).run(self.socket))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()

    def addresses(self) -> dict[str, str]:
        """The addresses in the hosts file, by index."""
        lines = (line.split() for line in self.hosts.read_text().splitlines())
        return {str(int(name[-3:])): address for address, name in lines}

    def setting(self, key: str) -> str:
        """As nvidia-imex read it at its start."""
        lines = (self.config_dir / "config.cfg").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[key]

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        """The end of the socket that `imex node` has, as soon as the agent listens."""
        reader, writer = await self._connect()
        client = Client(reader, writer)
        receiving = asyncio.create_task(client.receive())
        try:
            yield client
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def connected() -> bool:
            with suppress(FileNotFoundError, ConnectionRefusedError):  # a socket that is bound need not listen yet
                connections.append(await asyncio.open_unix_connection(self.socket))
            return bool(connections)

        condition: Callable[[], bool | Awaitable[bool]] = connected
        await until_async(condition)
        return connections[0]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.states: list[DaemonState] = []
        """Everything that the agent sent."""
        self.closed = False

    async def receive(self) -> None:
        async for state in messages(self._reader, DaemonState):
            self.states.append(state)
        self.closed = True

    async def send(self, *member_lists: MemberList) -> None:
        """Sends all of them in one write."""
        self.writer.write(b"".join(frame(member_list) for member_list in member_lists))
        await self.writer.drain()

    async def until(self, condition: Callable[[DaemonState], object]) -> DaemonState:
        """Waits until the latest state meets the condition."""
        try:
            await until_async(lambda: self.states and condition(self.states[-1]))
        except AssertionError as error:
            raise AssertionError(f"{error}; states: {self.states}") from None
        return self.states[-1]

    async def until_ready(self, index: int, generation: int = 1) -> DaemonState:
        def ready(state: DaemonState) -> bool:
            return (state.state, state.index, state.generation) == (ImexState.READY, index, generation)

        return await self.until(ready)
