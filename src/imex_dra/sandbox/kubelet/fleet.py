"""Many simulated nodes in one process: a machine each, with a runtime that outlives its kubelet."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from imex_dra.base.clock import Clock, SystemClock
from imex_dra.sandbox.kubelet.client import NodeClient, Switchboard
from imex_dra.sandbox.kubelet.containers import Launcher, Runtime
from imex_dra.sandbox.kubelet.hollow import Hollow
from imex_dra.sandbox.kubelet.kubelet import Kubelet, Timing
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts

_DIRECTORIES = ("k/plugins", "k/plugins_registry", "run/cdi", "etc/cdi", "pods")


class Member(Struct, frozen=True):
    facts: NodeFacts
    root: Path
    token: str


class Machine:
    """`kill` and `start` are about the kubelet alone; `stop` is a power failure."""

    def __init__(
        self, member: Member, client: NodeClient, launcher: Launcher, clock: Clock, timing: Timing
    ) -> None:
        self.member = member
        self._client = client
        self._clock = clock
        self._timing = timing
        self._runtime = Runtime(launcher, member.root / "pods", clock)
        self._kubelet: asyncio.Task[None] | None = None
        for directory in _DIRECTORIES:
            (member.root / directory).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        kubelet = Kubelet(
            self.member.facts,
            self.member.root,
            client=self._client,
            runtime=self._runtime,
            clock=self._clock,
            timing=self._timing,
        )
        self._kubelet = asyncio.create_task(kubelet.run())

    async def kill(self) -> None:
        if self._kubelet is not None:
            self._kubelet.cancel()
            await asyncio.wait({self._kubelet})
            if not self._kubelet.cancelled() and (error := self._kubelet.exception()):
                raise error
            self._kubelet = None

    async def stop(self) -> None:
        await self.kill()
        await self._runtime.stop()

    async def wait(self) -> None:
        """Returns never, unless the kubelet fails."""
        if self._kubelet is not None:
            await self._kubelet


class Fleet:
    def __init__(
        self,
        switchboard: Switchboard,
        members: list[Member],
        *,
        launcher: Callable[[Member], Launcher] = lambda member: Hollow(),
        timing: Timing | None = None,
    ) -> None:
        clock, timing = SystemClock(), timing or Timing()
        self.machines = {
            member.facts.name: Machine(member, switchboard.client(member.token), launcher(member), clock, timing)
            for member in members
        }

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for machine in self.machines.values():
                group.create_task(machine.stop())
