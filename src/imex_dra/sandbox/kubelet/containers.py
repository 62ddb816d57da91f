"""What stands for the container runtime of a node: it knows its sandboxes and outlives its kubelet.

A kubelet that starts finds here what runs. Containers come from a `Launcher`: processes, or hollow ones that
follow a script, for scale.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound
from imex_dra.base.waiting import first_of
from imex_dra.sandbox.kubelet.commands import Command, Execution
from imex_dra.sandbox.kubelet.logs import Logs
from imex_dra.sandbox.kubelet.runs import End, Run, StartFailed
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod

RUNTIME = "imex-sandbox"
START_ERROR = 128


class Bind(Struct, frozen=True):
    source: Path
    target: str
    read_only: bool = False


class Order(Struct, frozen=True):
    """A container to be made: everything is resolved, nothing is left to look up."""

    pod: Pod
    container: Container
    directory: Path
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    binds: tuple[Bind, ...] = ()


class Exit(Struct, frozen=True):
    code: int
    message: str = ""


class Task(Protocol):
    """One running container."""

    async def wait(self) -> Exit: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    async def enter(self, command: Command) -> Execution:
        """Runs a command beside the container's own; Rejected if that can't be."""


class Launcher(Protocol):
    has_inside: bool
    """Whether there are files to be set up, and commands can be run."""

    async def launch(self, order: Order, log: Path) -> Task:
        """Raises StartFailed if the command can't run, another Rejected if there can't be such a container."""


@dataclass
class Sandbox:
    pod: Pod
    directory: Path
    address: str = ""
    runs: dict[str, tuple[Run, ...]] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever one of its containers ends."""

    async def stop(self, grace: Callable[[], float], hurry: asyncio.Event, only: str = "") -> None:
        """Asks every container to end, or one, kills what has not within the grace, returns when nothing runs.

        `hurry` says that the grace may have become shorter.
        """
        began = asyncio.get_running_loop().time()
        for task in self._running(only):
            task.terminate()
        while self._running(only):
            hurry.clear()
            self.ended.clear()
            left = began + grace() - asyncio.get_running_loop().time()
            if left <= 0:
                for task in self._running(only):
                    task.kill()
            await first_of(hurry, self.ended, timeout=left if left > 0 else 1.0)

    def _running(self, only: str) -> list[Task]:
        return [task for name, task in self.tasks.items() if only in ("", name)]


class Runtime:
    """Waits for containers in tasks of its own, so that their ends are known whoever asks, whenever."""

    def __init__(self, launcher: Launcher, root: Path, clock: Clock) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.has_inside = launcher.has_inside
        self.on_end: Callable[[str], None] = lambda uid: None
        self._launcher = launcher
        self._directory = root / "pods"
        self._logs = Logs(root)
        self._clock = clock
        self._waiters: set[asyncio.Task[None]] = set()
        self._launches: set[asyncio.Task[None]] = set()
        self._addresses = 0

    def create(self, pod: Pod, network: str) -> Sandbox:
        """Addresses are for display only; `network` is their first three numbers."""
        self._addresses += 1
        address = f"{network}.{self._addresses % 254 + 1}"
        sandbox = Sandbox(pod, self._directory / pod.uid, address)
        self.sandboxes[pod.uid] = sandbox
        return sandbox

    async def start(self, sandbox: Sandbox, order: Order) -> None:
        """Goes on to its end if the caller is cancelled: a runtime finishes what a dead kubelet asked for."""
        launch = asyncio.create_task(self._start(sandbox, order))
        self._launches.add(launch)
        launch.add_done_callback(self._launches.discard)
        await asyncio.shield(launch)

    async def _start(self, sandbox: Sandbox, order: Order) -> None:
        name = order.container.name
        before = sandbox.runs.get(name, ())[-1:]
        attempt = before[0].attempt + 1 if before else 0
        run = Run(f"{RUNTIME}://{uuid.uuid4().hex}", attempt, self._clock.now())
        try:
            task = await self._launcher.launch(order, self._logs.file(order.pod, name, attempt))
        except StartFailed as error:
            end = End(START_ERROR, self._clock.now(), str(error), "StartError")
            sandbox.runs[name] = (*before, msgspec.structs.replace(run, end=end))
            self.on_end(sandbox.pod.uid)
            raise
        sandbox.runs[name] = (*before, run)
        sandbox.tasks[name] = task
        waiter = asyncio.create_task(self._follow(sandbox, name, run, task))
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)

    def task(self, uid: str, container: str) -> Task:
        sandbox = self.sandboxes.get(uid)
        if sandbox is None or container not in sandbox.tasks:
            raise NotFound(f'container not found ("{container}")')
        return sandbox.tasks[container]

    def goes_on(self, uid: str, container: str, attempt: int) -> bool:
        """Whether this very run still goes on."""
        sandbox = self.sandboxes.get(uid)
        return sandbox is not None and any(
            run.attempt == attempt and run.end is None for run in sandbox.runs.get(container, ())
        )

    def remove(self, uid: str) -> None:
        self.sandboxes.pop(uid, None)

    async def stop(self) -> None:
        """As if the power failed."""
        if self._launches:
            await asyncio.wait(self._launches, timeout=5)
        for sandbox in self.sandboxes.values():
            for task in sandbox.tasks.values():
                task.kill()
        if self._waiters:
            await asyncio.wait(self._waiters, timeout=5)
        for waiter in self._waiters:
            waiter.cancel()

    async def _follow(self, sandbox: Sandbox, name: str, run: Run, task: Task) -> None:
        result = await task.wait()
        ended = msgspec.structs.replace(run, end=End(result.code, self._clock.now(), result.message))
        sandbox.runs[name] = (*sandbox.runs[name][:-1], ended)
        del sandbox.tasks[name]
        sandbox.ended.set()
        self.on_end(sandbox.pod.uid)
