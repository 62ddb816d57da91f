"""The container runtime of a simulated node. It outlives the kubelet, as containerd does.

A kubelet that starts finds the running pod sandboxes here. Containers come from a `Launcher`: real processes
(`processes`), or hollow ones without a process, for scale (`hollow`).
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
from imex_dra.base.waiting import wait_any
from imex_sandbox.kubelet.containerexec import ExecCommand, ExecSession
from imex_sandbox.kubelet.logs import PodLogs
from imex_sandbox.kubelet.podstate import ContainerRun, StartError, Termination
from imex_sandbox.kubelet.views.pod import Container, Pod

RUNTIME = "imex-sandbox"
START_ERROR_CODE = 128
_STOP_TIMEOUT = 5.0


class BindMount(Struct, frozen=True):
    source: Path
    target: str
    read_only: bool = False


class ContainerConfig(Struct, frozen=True):
    """Everything that a launcher needs: all references are resolved."""

    pod: Pod
    container: Container
    directory: Path
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    mounts: tuple[BindMount, ...] = ()


class ExitStatus(Struct, frozen=True):
    code: int
    message: str = ""


class RunningContainer(Protocol):
    async def wait(self) -> ExitStatus: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    async def exec(self, command: ExecCommand) -> ExecSession:
        """Raises Rejected if the command cannot be executed."""


class Launcher(Protocol):
    runs_processes: bool
    """Whether containers have volumes and logs, and can execute commands and probes."""

    async def launch(self, config: ContainerConfig, log: Path) -> RunningContainer:
        """Raises StartError if the command cannot be executed, and Rejected if the container cannot be created."""


@dataclass
class PodSandbox:
    pod: Pod
    directory: Path
    ip: str = ""
    runs: dict[str, tuple[ContainerRun, ...]] = field(default_factory=dict)
    running: dict[str, RunningContainer] = field(default_factory=dict)
    container_exited: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop(self, grace: Callable[[], float], grace_changed: asyncio.Event, only: str = "") -> None:
        """Terminates all containers, or `only` one; kills those still running after the grace period.

        Returns when they have exited. `grace` is evaluated again when `grace_changed` is set, because a deletion
        can shorten the grace period while containers are terminating.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        for container in self._running(only):
            container.terminate()
        while self._running(only):
            # Cleared before the remaining time is computed: what changes from here on ends the wait below.
            grace_changed.clear()
            self.container_exited.clear()
            left = started + grace() - loop.time()
            if left <= 0:
                for container in self._running(only):
                    container.kill()
            await wait_any(grace_changed, self.container_exited, timeout=left if left > 0 else 1.0)

    def _running(self, only: str) -> list[RunningContainer]:
        return [container for name, container in self.running.items() if only in ("", name)]


class ContainerRuntime:
    """Waits for containers in tasks of its own, so that exits are recorded while no kubelet runs."""

    def __init__(self, launcher: Launcher, root: Path, clock: Clock) -> None:
        self.sandboxes: dict[str, PodSandbox] = {}
        self.runs_processes = launcher.runs_processes
        self.on_exit: Callable[[str], None] = lambda uid: None
        self._launcher = launcher
        self._directory = root / "pods"
        self._logs = PodLogs(root)
        self._clock = clock
        self._waits: set[asyncio.Task[None]] = set()
        self._launches: set[asyncio.Task[None]] = set()
        self._ip_count = 0

    def create_sandbox(self, pod: Pod, pod_network: str) -> PodSandbox:
        self._ip_count += 1
        sandbox = PodSandbox(pod, self._directory / pod.uid, f"{pod_network}.{self._ip_count % 254 + 1}")
        self.sandboxes[pod.uid] = sandbox
        return sandbox

    def remove_sandbox(self, uid: str) -> None:
        self.sandboxes.pop(uid, None)

    async def start_container(self, sandbox: PodSandbox, config: ContainerConfig) -> None:
        # Shielded: a runtime completes a request even if the kubelet that made it is killed.
        launch = asyncio.create_task(self._start(sandbox, config))
        self._launches.add(launch)
        launch.add_done_callback(self._launches.discard)
        await asyncio.shield(launch)

    async def _start(self, sandbox: PodSandbox, config: ContainerConfig) -> None:
        name = config.container.name
        previous = sandbox.runs.get(name, ())[-1:]
        attempt = previous[0].attempt + 1 if previous else 0
        run = ContainerRun(f"{RUNTIME}://{uuid.uuid4().hex}", attempt, self._clock.now())
        try:
            container = await self._launcher.launch(config, self._logs.file(config.pod, name, attempt))
        except StartError as error:
            termination = Termination(START_ERROR_CODE, self._clock.now(), str(error), "StartError")
            sandbox.runs[name] = (*previous, msgspec.structs.replace(run, termination=termination))
            self.on_exit(sandbox.pod.uid)
            raise
        sandbox.runs[name] = (*previous, run)
        sandbox.running[name] = container
        wait = asyncio.create_task(self._record_exit(sandbox, name, run, container))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    async def _record_exit(
        self, sandbox: PodSandbox, name: str, run: ContainerRun, container: RunningContainer
    ) -> None:
        status = await container.wait()
        termination = Termination(status.code, self._clock.now(), status.message)
        ended = msgspec.structs.replace(run, termination=termination)
        sandbox.runs[name] = (*sandbox.runs[name][:-1], ended)
        del sandbox.running[name]
        sandbox.container_exited.set()
        self.on_exit(sandbox.pod.uid)

    def running_container(self, uid: str, name: str) -> RunningContainer:
        sandbox = self.sandboxes.get(uid)
        if sandbox is None or name not in sandbox.running:
            raise NotFound(f'container not found ("{name}")')
        return sandbox.running[name]

    def is_attempt_running(self, uid: str, name: str, attempt: int) -> bool:
        sandbox = self.sandboxes.get(uid)
        return sandbox is not None and any(
            run.attempt == attempt and run.termination is None for run in sandbox.runs.get(name, ())
        )

    async def power_off(self) -> None:
        """Kills all containers and forgets all sandboxes, as a power failure does."""
        if self._launches:
            await asyncio.wait(self._launches, timeout=_STOP_TIMEOUT)
        for sandbox in self.sandboxes.values():
            for container in sandbox.running.values():
                container.kill()
        if self._waits:
            await asyncio.wait(self._waits, timeout=_STOP_TIMEOUT)
        for wait in self._waits:
            wait.cancel()
        self.sandboxes.clear()
