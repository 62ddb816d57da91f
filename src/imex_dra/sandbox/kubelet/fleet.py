"""Many simulated nodes in one process: a machine each, with a runtime that outlives its kubelet."""

import asyncio
import ssl
from collections.abc import Callable

from msgspec import structs

from imex_dra.base.clock import Clock, SystemClock
from imex_dra.sandbox.kubelet.client import NodeClient, Switchboard
from imex_dra.sandbox.kubelet.containers import Launcher, Runtime
from imex_dra.sandbox.kubelet.hollow import Hollow
from imex_dra.sandbox.kubelet.kubelet import Kubelet, Timing
from imex_dra.sandbox.kubelet.settings import Member
from imex_dra.sandbox.kubelet.standins import Rule

_DIRECTORIES = ("k/plugins", "k/plugins_registry", "run/cdi", "etc/cdi", "pods")


class Machine:
    """`kill` and `start` are about the kubelet alone; `stop` is a power failure, and `boot` what follows."""

    def __init__(
        self,
        member: Member,
        client: NodeClient,
        launcher: Launcher,
        clock: Clock,
        timing: Timing,
        rules: tuple[Rule, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._facts = member.facts
        self._root = member.root
        self._rules = rules
        self._client = client
        self._clock = clock
        self._timing = timing
        self._tls = tls
        self._runtime = Runtime(launcher, member.root, clock)
        self._kubelet: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()

    @property
    def runs(self) -> bool:
        return self._kubelet is not None

    def start(self) -> None:
        for directory in _DIRECTORIES:
            (self._root / directory).mkdir(parents=True, exist_ok=True)
        kubelet = Kubelet(
            self._facts,
            self._root,
            client=self._client,
            runtime=self._runtime,
            clock=self._clock,
            timing=self._timing,
            rules=self._rules,
            tls=self._tls,
        )
        self._kubelet = asyncio.create_task(kubelet.run())
        self._kubelet.add_done_callback(self._ended)

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
        self._runtime.sandboxes.clear()

    def boot(self, boot_id: str) -> None:
        self._facts = structs.replace(self._facts, boot_id=boot_id)
        self.start()

    async def wait(self) -> None:
        """Returns never, unless the kubelet fails; being killed is no failure."""
        await self._failed.wait()
        if self._kubelet is not None:
            self._kubelet.result()

    def _ended(self, kubelet: asyncio.Task[None]) -> None:
        if not kubelet.cancelled():
            self._failed.set()


class Fleet:
    """With `tls` (`certificates.tls`) its kubelets have an API of their own, for `kubectl logs` and `exec`."""

    def __init__(
        self,
        switchboard: Switchboard,
        members: list[Member],
        *,
        launcher: Callable[[Member], Launcher] = lambda member: Hollow(),
        timing: Timing | None = None,
        rules: tuple[Rule, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        clock, timing = SystemClock(), timing or Timing()
        self.machines = {
            member.facts.name: Machine(
                member,
                switchboard.client(member.token, member.server),
                launcher(member),
                clock,
                timing,
                rules,
                tls,
            )
            for member in members
        }

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for machine in self.machines.values():
                group.create_task(machine.stop())
