"""A simulated node: its root directory, its address in 127/8, nvidia-imex with its supervisor, and a manager."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState
from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.state import DaemonState, PollIntervals
from imex_dra.daemon.supervisor import SCRIPT, Found, Supervisor
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import MemberList
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedGpu
from tests.waiting import until, until_async

PARTITION = "7b968a6d.1"
HARDWARE = HardwareFile(
    Fabric(FabricState.OK), PARTITION, "580.95.05", 2048, "boot-1", gpus=(SimulatedGpu("GPU-0", "GB200"),)
)
STOPS_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")


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
        addresses = {index: self.address(index) for index in indexes} | facts.pop("addresses", {})
        return MemberList(
            partition=facts.get("partition", PARTITION),
            generation=generation,
            max_nodes=4,
            name_format="imex-0a1b2c3d-%03d",
            addresses=addresses,
            own_index=own,
            own_address=addresses[own],
            possible_importers=facts.get("possible_importers", ()),
            boot_ids=facts.get("boot_ids", {}),
        )

    def address(self, number: int) -> str:
        return f"{self.net}.{number + 10}"


class RunningSupervisor:
    """The supervisor as a process that leads a process group, as in a container."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        *,
        shell: Sequence[str] = ("sh",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.log"
        self.files = Supervisor(directory)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*STOPS_WITH_PARENT, *shell, SCRIPT, directory, "--", *command],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self.until(lambda found: True)

    def find(self) -> Found:
        found = self.files.find()
        assert found is not None, f"the supervisor does not run: {self.log.read_text()}"
        return found

    def until(self, condition: Callable[[Found], object]) -> Found:
        def met() -> Found | None:
            found = self.files.find()
            return found if found is not None and condition(found) else None

        try:
            return until(met) or Found()
        except AssertionError as error:
            raise AssertionError(f"{error}; found: {self.files.find()}; log: {self.log.read_text()}") from None

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        """Ends everything at once, as the end of a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        until(lambda: not self.group())

    def group(self) -> list[int]:
        """Its processes. Zombies do not count: an orphan may be reaped late."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, leader, *_ = stat.read_text().rpartition(")")[2].split()
                if state != "Z" and int(leader) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found


@contextmanager
def running(directory: Path, command: Sequence[str], **options: Any) -> Iterator[RunningSupervisor]:
    supervisor = RunningSupervisor(directory, command, **options)
    try:
        yield supervisor
    finally:
        supervisor.close()


class SimulatedNode:
    def __init__(self, rack: Rack, number: int) -> None:
        self.rack = rack
        self.root = NodeRoot(rack.directory / f"n{number}")
        self.root.make(HARDWARE, address=rack.address(number))
        self.files = Supervisor(self.root.imex)
        self.hosts = self.root.imex / "hosts"

    def soft_imex(self, program: str) -> Sequence[str]:
        return self.root.soft_imex(program, self.rack.directory / "f")

    def supervisor(self, *, command: Sequence[str] = (), **options: Any) -> RunningSupervisor:
        return RunningSupervisor(self.root.imex, command or self.soft_imex("daemon"), **options)

    @property
    def imex_pid(self) -> int:
        """The PID of the nvidia-imex that holds the node's only session."""
        return int((self.root.path / "run/imex.lock").read_text())

    def addresses(self) -> dict[int, str]:
        """The addresses in the hosts file, by index."""
        lines = (line.split() for line in self.hosts.read_text().splitlines()[2:])
        return {int(name[-3:]): address for address, name in lines}

    @asynccontextmanager
    async def managed(
        self, *, supervisor: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator["Managed"]:
        """With a supervisor and a manager."""
        running = self.supervisor(**(supervisor or {}))
        try:
            async with self.manager(**options) as managed:
                yield managed
        finally:
            running.close()

    @asynccontextmanager
    async def manager(self, *, ctl_command: Sequence[str] = (), **options: Any) -> AsyncIterator["Managed"]:
        managed = Managed(self, ImexCtl(ctl_command or self.soft_imex("ctl")), options)
        task = asyncio.create_task(managed.manager.run())
        try:
            yield managed
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})


class Managed:
    """A manager, and everything that it published."""

    def __init__(self, node: SimulatedNode, ctl: ImexCtl, options: Mapping[str, Any]) -> None:
        self.states: list[DaemonState] = []
        intervals = PollIntervals(starting=0.1, connecting=0.3, steady=1.0)
        self.manager = DaemonManager(node.files, ctl, self._publish, poll_intervals=intervals, **options)

    def _publish(self, state: DaemonState) -> None:
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    def desire(self, desired: Any) -> None:
        self.manager.desire(desired, may_write=True)

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


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]
