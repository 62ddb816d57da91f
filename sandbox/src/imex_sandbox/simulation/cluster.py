"""A simulated cluster: the API, two controllers, the nodes of small racks, and the control plane around them."""

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from imex_dra.api.meta import Key as LeaseKey
from imex_dra.api.names import LEASE, NAMESPACE, PartitionId
from imex_dra.base.clock import Clock
from imex_dra.controller.leader import Leader
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_sandbox.embedded.kinds import NAMESPACES
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Change, Key, Storage
from imex_sandbox.simulation.imex import Daemon, Fabric
from imex_sandbox.simulation.kubelet import Kubelet, Process
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.network import Link, client_of
from imex_sandbox.simulation.node import WATCH_FACTOR, SimulatedNode
from imex_sandbox.simulation.process import Program
from imex_sandbox.simulation.scheduling import NODES, ControlPlane

USERS = "team"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_TIMING = Timing(lease_duration=150, renew_deadline=100.0, retry_period=45.0)
"""Longer than in production: renewals would be most of the work of a simulated day."""
_GRACE = 40.0
"""Seconds after which a node that does not report is not Ready."""


class SimulatedClock(Clock):
    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic())


class SimulatedCluster:
    def __init__(self, chance: random.Random, directory: Path, *, racks: int = 1, nodes: int = 4) -> None:
        self.chance = chance
        self.clock = SimulatedClock()
        self.storage = Storage(history=2000)
        self.objects = Objects(self.storage, now=self.clock.now, new_uid=self._new_uid)
        self.fabric = Fabric()
        self.nodes: dict[str, SimulatedNode] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.restored: set[str] = set()
        """Partitions whose object was tampered with, until the controller has written it again."""
        self._is_tampering = False
        self.check: Callable[[], None] = lambda: None
        self._controllers: list[Program] = []
        self._control_plane = ControlPlane(self.objects, chance)
        for rack in range(racks):
            partition = PartitionId(f"{uuid.UUID(int=rack + 1)}.1")
            for number in range(nodes):
                name = f"r{rack}-n{number:02d}"
                address = f"10.0.{rack}.{number + 1}"
                node = SimulatedNode(name, address, partition, directory / name, self.objects, chance, self.clock)
                self.nodes[name] = node
                self.kubelets[name] = Kubelet(node, self.objects, chance)
        self.storage.subscribe(self._on_change)

    @property
    def loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    def processes(self) -> Iterator[Process]:
        for kubelet in self.kubelets.values():
            yield from kubelet.processes.values()

    async def run(self) -> None:
        """Until it is cancelled."""
        for namespace in (USERS, NAMESPACE):
            self.objects.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        async with asyncio.TaskGroup() as group:
            group.create_task(self._control_plane.run())
            for node in self.nodes.values():
                self.register(node)
                self.kubelets[node.name].on_process = lambda: self.check()
                group.create_task(self.kubelets[node.name].run())
                group.create_task(self.kubelets[node.name].reconcile())
                group.create_task(self._keep_node_ready(node))
                node.start_program(self.fabric, self._on_fabric_change)
            for number in range(2):
                group.create_task(self._keep_controller(number))

    def stop(self) -> None:
        for program in [*self._controllers, *(node.program for node in self.nodes.values())]:
            if program is not None:
                program.kill()
        for kubelet in self.kubelets.values():
            kubelet.reboot()

    # What the outside does to the cluster

    def register(self, node: SimulatedNode) -> None:
        if self.storage.get(NODES, Key("", node.name)) is None:
            self.objects.create(NODES, "", {"metadata": {"name": node.name}})
            self._set_ready(node.name, "True")

    def power_off(self, node: SimulatedNode) -> None:
        node.powered = False
        node.kill_program()
        self.fabric.daemons.pop(node.name, None)
        self.kubelets[node.name].reboot()
        self.check()

    def power_on(self, node: SimulatedNode) -> None:
        node.hardware.boot += 1
        node.powered = True
        self.fabric.daemons[node.name] = Daemon(node.address)
        node.start_program(self.fabric, self._on_fabric_change)
        self.kubelets[node.name].wake()

    def restart_program(self, node: SimulatedNode) -> None:
        if node.powered and (node.program is None or not node.program.running):
            node.start_program(self.fabric, self._on_fabric_change)

    def kill_controller(self, number: int) -> None:
        if number < len(self._controllers):
            self._controllers[number].kill()

    def links(self) -> list[Link]:
        programs = [*self._controllers, *(node.program for node in self.nodes.values())]
        return [program.link for program in programs if program is not None]

    @contextmanager
    def tampering(self, partition: str) -> Iterator[None]:
        """Somebody other than the controller changes the object: its content means nothing for a moment."""
        self._is_tampering = True
        self.restored.add(partition)
        yield
        self._is_tampering = False

    # What Kubernetes does by itself

    async def _keep_node_ready(self, node: SimulatedNode) -> None:
        missing_since: float | None = None
        while True:
            now = asyncio.get_running_loop().time()
            if node.powered and not node.link_is_cut:
                missing_since = None
                self.register(node)
                self._set_ready(node.name, "True")
            else:
                missing_since = now if missing_since is None else missing_since
                if now - missing_since >= _GRACE:
                    self._set_ready(node.name, "Unknown")
            await asyncio.sleep(20.0)

    def _set_ready(self, name: str, status: str) -> None:
        node = self.storage.get(NODES, Key("", name))
        condition = {"type": "Ready", "status": status, "reason": "Simulated"}
        if node is None or node.document.get("status", {}).get("conditions") == [condition]:
            return
        self.objects.patch(NODES, Key("", name), {"status": {"conditions": [condition]}}, subresource="status")

    async def _keep_controller(self, number: int) -> None:
        while True:
            link = Link(self.chance, watch_factor=WATCH_FACTOR)
            program = Program(f"imex controller {number}", link)
            self._controllers[number : number + 1] = [program]
            program.start(self._controller(number, link))
            try:
                await program.ended()
            except* LostLeadership:
                pass
            await asyncio.sleep(5.0 + 10.0 * self.chance.random())

    async def _controller(self, number: int, link: Link) -> None:
        client = client_of("imex-controller", self.objects, link)
        identity = f"controller-{number}-{self._new_uid()[:8]}"
        election = LeaderElection(client, LeaseKey(NAMESPACE, LEASE), identity, self.clock, _TIMING)
        await election.lead(lambda: Leader(client, identity, self.clock).run())

    def _on_change(self, change: Change) -> None:
        if change.kind.plural == "nvlinkpartitions" and not self._is_tampering:
            self.restored.discard(change.key.name)
            self.check()

    def _on_fabric_change(self) -> None:
        self.check()

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
