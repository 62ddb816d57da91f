"""A simulated node for the agent: its root, its address in 127/8, and somebody who speaks to its agent."""

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState
from imex_dra.daemon.agent import Agent
from imex_dra.daemon.pace import Pace
from imex_dra.hardware.simulated import HardwareFile, SimulatedGpu
from imex_dra.imex.ctl import Ctl
from imex_dra.imex.files import Files
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.membership import Membership
from imex_dra.sandbox.noderoot import NodeRoot

PARTITION = "7b968a6d.1"
HARDWARE = HardwareFile(
    Fabric(FabricState.OK), PARTITION, "580.95.05", 2048, "boot-1", gpus=(SimulatedGpu("GPU-0", "GB200"),)
)
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


async def eventually(condition: Callable[[], object], within: float = 45.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


class Rack:
    """Directories and addresses of its own, so that test runs on one machine don't meet."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        chance = random.SystemRandom()
        self.net = f"127.{chance.randrange(100, 250)}.{chance.randrange(1, 250)}"
        (self.directory / "f").mkdir(mode=0o700)

    def close(self) -> None:
        shutil.rmtree(self.directory)

    def membership(self, own: int, *slots: int, generation: int = 1, **facts: Any) -> Membership:
        """Of these slots, each at the address of its number; `addresses` says who moved."""
        addresses = {str(slot): self.address(slot) for slot in slots} | facts.pop("addresses", {})
        return Membership(
            partition=facts.get("partition", PARTITION),
            generation=generation,
            slots=4,
            name_format="imex-0a1b2c3d-%03d",
            addresses=addresses,
            own_slot=own,
            own_address=addresses[str(own)],
        )

    def address(self, number: int) -> str:
        return f"{self.net}.{number + 10}"


class Node:
    def __init__(self, rack: Rack, number: int) -> None:
        self.rack = rack
        self.root = NodeRoot(rack.directory / f"n{number}")
        self.root.make(HARDWARE, address=rack.address(number))
        self.socket = self.root.path / "run/daemon.sock"
        self.hosts = self.root.path / "hosts"
        self.directory = self.root.path / "etc/nvidia-imex"

    def soft(self, program: str) -> Sequence[str]:
        variables = (f"IMEX_NODE_ROOT={self.root.path}", f"IMEX_FABRIC_DIR={self.rack.directory / 'f'}")
        return [*DIES_WITH_US, "env", *variables, sys.executable, "-m", f"imex_dra.softimex.{program}"]

    def agent(self, **options: Any) -> Agent:
        settings: dict[str, Any] = {
            "command": self.soft("daemon"),
            "pace": Pace(eager=0.1, watchful=0.3, calm=1.0),
        }
        files = Files(self.directory, self.hosts)
        ctl = Ctl(options.pop("ctl_command", self.soft("ctl")), files.config)
        return Agent(files, self.directory / "membership.json", ctl=ctl, **settings | options)

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.agent(**options).run(self.socket))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()

    def names(self) -> dict[str, str]:
        """Where the names point to, by slot."""
        lines = (line.split() for line in self.hosts.read_text().splitlines())
        return {str(int(name[-3:])): address for address, name in lines}

    def setting(self, key: str) -> str:
        """As nvidia-imex found it at its start."""
        lines = (self.directory / "config.cfg").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[key]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A socket that is bound is not yet one that listens."""
        async with asyncio.timeout(45):
            while True:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    return await asyncio.open_unix_connection(self.socket)
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def speaker(self) -> AsyncIterator["Speaker"]:
        """The node program's end of the socket, as soon as there is one."""
        reader, writer = await self._connect()
        speaker = Speaker(reader, writer)
        listening = asyncio.create_task(speaker.listen())
        try:
            yield speaker
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            writer.close()


class Speaker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.heard: list[DaemonState] = []
        self.hung_up = False

    async def listen(self) -> None:
        async for state in messages(self._reader, DaemonState):
            self.heard.append(state)
        self.hung_up = True

    async def tell(self, *memberships: Membership) -> None:
        """All of them in one breath."""
        self.writer.write(b"".join(frame(membership) for membership in memberships))
        await self.writer.drain()

    async def until(self, condition: Callable[[DaemonState], object], within: float = 45.0) -> DaemonState:
        """Of the latest state, now or in a while."""
        try:
            async with asyncio.timeout(within):
                while not self.heard or not condition(self.heard[-1]):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not within {within:g} s; heard: {self.heard}") from None
        return self.heard[-1]

    async def until_ready(self, slot: int, generation: int = 1) -> DaemonState:
        def ready(state: DaemonState) -> bool:
            return (state.state, state.slot, state.generation) == (ImexState.READY, slot, generation)

        return await self.until(ready)
