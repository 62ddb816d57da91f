"""A simulated cluster: the API, two controllers, the nodes of small racks, and the control plane around them."""

import asyncio
import hashlib
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from imex_dra.api.meta import Key as LeaseKey
from imex_dra.api.names import LEASE, NAMESPACE, PartitionId
from imex_dra.base.clock import Clock
from imex_dra.base.waiting import wait_any
from imex_dra.controller.leader import Leader
from imex_dra.controller.settings import Settings
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_sandbox.embedded.kinds import NAMESPACES
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Change, Key, Storage, Stored
from imex_sandbox.simulation.containers import Process
from imex_sandbox.simulation.imex import Daemon, Fabric
from imex_sandbox.simulation.kinds import NODES, PARTITIONS
from imex_sandbox.simulation.kubelet import Kubelet
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.network import ApiServer, Link, client_of
from imex_sandbox.simulation.node import WATCH_FACTOR, SimulatedHardware, SimulatedNode
from imex_sandbox.simulation.process import Program
from imex_sandbox.simulation.scheduling import ControlPlane

USERS = "team"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_TIMING = Timing(lease_duration=150, renew_deadline=100.0, retry_period=45.0)
"""Longer than in production: renewals would be most of the work of a simulated day."""
_GRACE = 40.0
"""Seconds after which a node that does not report is not Ready."""


class SimulatedClock(Clock):
    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic())


class Shape(NamedTuple):
    racks: int
    nodes: int
    """For each rack."""
    channels: int
    """Few, so that numbers are reused soon."""


class SimulatedCluster:
    def __init__(self, seed: str, directory: Path, shape: Shape) -> None:
        self._seed = seed
        # Few spare indexes, so that they are reused soon.
        self._settings = Settings(max_nodes=shape.racks * shape.nodes + 1)
        self.chance = self.generator("cluster")
        self.clock = SimulatedClock()
        self.storage = Storage(history=2000)
        self.objects = Objects(self.storage, now=self.clock.now, new_uid=self._new_uid)
        self.server = ApiServer()
        self.fabric = Fabric()
        self.nodes: dict[str, SimulatedNode] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.controllers: dict[int, Program] = {}
        self.restored: set[str] = set()
        """Partitions whose object was tampered with, until the controller has written it again."""
        self.tampered_at: dict[str, float] = {}
        self.on_step: Callable[[], None] = lambda: None
        self.is_tampering = False
        self._log = hashlib.blake2b(digest_size=8)
        self._directory = bytes(directory)
        self._control_plane = ControlPlane(self.objects, self.generator("control plane"))
        for rack in range(shape.racks):
            for number in range(shape.nodes):
                self._add_node(
                    f"r{rack}-n{number:02d}", f"10.0.{rack}.{number + 1}", rack, shape.channels, directory
                )
        self.fabric.on_change = self._check
        self.storage.subscribe(self._on_change)

    def _add_node(self, name: str, address: str, rack: int, channels: int, directory: Path) -> None:
        hardware = SimulatedHardware(partition_of_rack(rack), channels)
        self.nodes[name] = SimulatedNode(
            name,
            address,
            hardware,
            directory / name,
            self.objects,
            self.server,
            self.fabric,
            self.generator,
            self.clock,
        )
        self.kubelets[name] = Kubelet(self.nodes[name], self.objects, self.generator(f"kubelet of {name}"))
        self.kubelets[name].on_process = self._check
        self.nodes[name].disk.on_change = self._check

    def generator(self, name: str) -> random.Random:
        """Each part has its own, so that a change in one disturbs the others as little as possible."""
        return random.Random(f"{self._seed}/{name}")

    @property
    def loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    @property
    def digest(self) -> str:
        """Of everything that happened: two runs with the same digest were the same."""
        return self._log.hexdigest()

    def record(self, event: str, content: bytes = b"") -> None:
        self._log.update(f"{self.loop.time():.6f} {event} ".encode())
        # Errors of a disk name the directory, which has another name in each run.
        self._log.update(content.replace(self._directory, b""))

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
                group.create_task(self.kubelets[node.name].run())
                group.create_task(self.kubelets[node.name].reconcile())
                group.create_task(self._keep_node_ready(node))
                node.start_program()
            for number in range(2):
                group.create_task(self._keep_controller(number))

    def stop(self) -> None:
        for program in self.programs():
            program.kill()
        for kubelet in self.kubelets.values():
            kubelet.reboot()

    def programs(self) -> list[Program]:
        return [*self.controllers.values(), *(p for node in self.nodes.values() for p in node.running())]

    # What the outside does to the cluster

    def register(self, node: SimulatedNode) -> None:
        if self.storage.get(NODES, Key("", node.name)) is None:
            self.objects.create(NODES, "", {"metadata": {"name": node.name}})
            self._set_ready(node.name, "True")

    def power_off(self, node: SimulatedNode) -> None:
        node.set_liveness(powered=False)
        node.kill_programs()
        node.disk.lose_power()
        if daemon := self.fabric.daemons.get(node.name):
            daemon.applied = None
        self.kubelets[node.name].reboot()
        self.fabric.notify()

    def power_on(self, node: SimulatedNode) -> None:
        """nvidia-imex starts only when `imex node` has read the partition again."""
        node.hardware.boot += 1
        node.set_liveness(powered=True)
        self.fabric.daemons[node.name] = Daemon(node.address)
        node.start_program()
        self.fabric.notify()
        self.kubelets[node.name].wake()

    def ensure_program(self, node: SimulatedNode) -> None:
        if node.powered and not node.running():
            node.start_program()

    @contextmanager
    def tampering(self, partition: str) -> Iterator[None]:
        """Somebody other than the controller changes the object: its content means nothing for a moment."""
        self.is_tampering = True
        self.restored.add(partition)
        self.tampered_at[partition] = self.loop.time()
        yield
        self.is_tampering = False

    # What Kubernetes does by itself

    async def _keep_node_ready(self, node: SimulatedNode) -> None:
        while True:
            changed = node.liveness_changed
            if node.is_alive:
                self.register(node)
                self._set_ready(node.name, "True")
                await changed.wait()
                await asyncio.sleep(1.0)
                continue
            await wait_any(changed, timeout=_GRACE)
            if not node.is_alive and not changed.is_set():
                self._set_ready(node.name, "Unknown")
                await changed.wait()

    def _set_ready(self, name: str, status: str) -> None:
        node = self.storage.get(NODES, Key("", name))
        condition = {"type": "Ready", "status": status, "reason": "Simulated"}
        if node is None or node.document.get("status", {}).get("conditions") == [condition]:
            return
        self.objects.patch(NODES, Key("", name), {"status": {"conditions": [condition]}}, subresource="status")

    async def _keep_controller(self, number: int) -> None:
        started, chance = 0, self.generator(f"restarts of controller {number}")
        while True:
            started += 1
            name = f"controller-{number}-{started}"
            link = Link(self.generator(name), self.server, watch_factor=WATCH_FACTOR)
            program = self.controllers[number] = Program(name, link)
            program.start(self._controller(name, link))
            try:
                await program.ended()
            except* LostLeadership:
                pass
            await asyncio.sleep(5.0 + 10.0 * chance.random())

    async def _controller(self, identity: str, link: Link) -> None:
        client = client_of("imex-controller", self.objects, link)
        election = LeaderElection(client, LeaseKey(NAMESPACE, LEASE), identity, self.clock, _TIMING)
        await election.lead(lambda: Leader(client, identity, self.clock, settings=self._settings).run())

    def _on_change(self, change: Change) -> None:
        self.record(f"{change.kind.plural} {change.key}", change.last.encoded)
        if change.kind is PARTITIONS and not self.is_tampering:
            # Conditions have other writers in the controller, which say nothing about channels.
            if _planned(change.old) != _planned(change.new):
                self.restored.discard(change.key.name)
            self._check()

    def _check(self) -> None:
        self.on_step()

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))


def partition_of_rack(rack: int) -> PartitionId:
    return PartitionId(f"{uuid.UUID(int=rack + 1)}.1")


def _planned(partition: Stored | None) -> object:
    status = partition.document.get("status", {}) if partition else {}
    return {field: value for field, value in status.items() if field not in ("conditions", "summary")}
