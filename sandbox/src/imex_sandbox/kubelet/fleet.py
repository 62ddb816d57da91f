"""Many simulated nodes in one process. Each is a machine: a kubelet, and a container runtime that outlives it."""

import asyncio
import ssl
from collections.abc import Sequence

from msgspec import structs

from imex_dra.base.clock import Clock
from imex_sandbox.kubelet.client import ClientPool, NodeClient
from imex_sandbox.kubelet.config import NodeConfig, StandIn
from imex_sandbox.kubelet.kubelet import Kubelet
from imex_sandbox.kubelet.runtime import ContainerRuntime, Launcher

_DIRECTORIES = ("k/plugins", "k/plugins_registry", "run/cdi", "etc/cdi", "pods")


class Machine:
    def __init__(
        self,
        config: NodeConfig,
        client: NodeClient,
        launcher: Launcher,
        clock: Clock,
        stand_ins: tuple[StandIn, ...],
        tls: ssl.SSLContext,
    ) -> None:
        self._facts = config.facts
        self._root = config.root
        self._stand_ins = stand_ins
        self._client = client
        self._clock = clock
        self._tls = tls
        self._runtime = ContainerRuntime(launcher, config.root, clock)
        self._kubelet: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()

    @property
    def kubelet_runs(self) -> bool:
        return self._kubelet is not None

    def start_kubelet(self) -> None:
        for directory in _DIRECTORIES:
            (self._root / directory).mkdir(parents=True, exist_ok=True)
        kubelet = Kubelet(
            self._facts,
            self._root,
            client=self._client,
            runtime=self._runtime,
            clock=self._clock,
            stand_ins=self._stand_ins,
            tls=self._tls,
        )
        self._kubelet = asyncio.create_task(kubelet.run())
        self._kubelet.add_done_callback(self._kubelet_ended)

    async def kill_kubelet(self) -> None:
        """Containers continue."""
        if self._kubelet is not None:
            self._kubelet.cancel()
            await asyncio.wait({self._kubelet})
            if not self._kubelet.cancelled() and (error := self._kubelet.exception()):
                raise error
            self._kubelet = None

    async def power_off(self) -> None:
        await self.kill_kubelet()
        await self._runtime.power_off()

    def power_on(self, boot_id: str) -> None:
        self._facts = structs.replace(self._facts, boot_id=boot_id)
        self.start_kubelet()

    async def wait(self) -> None:
        """Returns only if the kubelet fails, and raises its error; `kill_kubelet` is not a failure."""
        await self._failed.wait()
        if self._kubelet is not None:
            self._kubelet.result()

    def _kubelet_ended(self, kubelet: asyncio.Task[None]) -> None:
        if not kubelet.cancelled():
            self._failed.set()


class Fleet:
    def __init__(
        self,
        clients: ClientPool,
        nodes: Sequence[NodeConfig],
        *,
        launcher: Launcher,
        tls: ssl.SSLContext,
        stand_ins: tuple[StandIn, ...] = (),
    ) -> None:
        clock = Clock()
        self.machines = {
            node.facts.name: Machine(
                node, clients.client(node.server, node.token), launcher, clock, stand_ins, tls
            )
            for node in nodes
        }

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start_kubelet()

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for machine in self.machines.values():
                group.create_task(machine.power_off())
