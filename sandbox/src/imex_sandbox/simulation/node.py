"""A simulated node: hardware, disk, IMEX daemon, the real node program, and a kubelet with its processes."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric as FabricReport
from imex_dra.api.nvlinknode import FabricState
from imex_dra.base.clock import Clock
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits, DeviceNode
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.client import Client
from imex_dra.node.checkpoint import CheckpointFile
from imex_dra.node.devices import DevicePublisher
from imex_dra.node.lasting import follow_lasting_facts
from imex_dra.node.prepare import ClaimPreparer
from imex_dra.node.prepared import PreparedClaims
from imex_dra.node.report import NodeReporter
from imex_dra.node.state import NodeState, follow_hardware, follow_partition, member_list_for_daemon
from imex_dra.node.sweep import KUBELET_CHECKPOINT, follow_driver, sweep_forever
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.simulation.imex import Daemon, Fabric
from imex_sandbox.simulation.network import Link, client_of
from imex_sandbox.simulation.process import Program

_POLL_PERIOD = 15.0
_REPORT_PERIOD = 600.0
WATCH_FACTOR = 12.0
CHANNEL_COUNT = 12
"""Few, so that numbers are reused soon."""


class SimulatedHardware:
    period = 30.0

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.boot = 1
        self.major = 500
        self.broken = ""

    async def read(self) -> Reading:
        if self.broken:
            fabric, partition = FabricReport(FabricState.BROKEN, self.broken), PartitionId("")
        else:
            fabric, partition = FabricReport(FabricState.OK), self.partition
        return Reading(
            fabric, partition, "580.1", CHANNEL_COUNT, boot_id=f"boot-{self.boot}", channel_major=self.major
        )

    def container_edits(self, channel: int) -> ContainerEdits:
        return ContainerEdits(device_nodes=(DeviceNode(f"/dev/channel{channel}", self.major, channel, "c"),))


class SimulatedNode:
    """Everything that survives its programs."""

    def __init__(
        self,
        name: str,
        address: str,
        partition: PartitionId,
        root: Path,
        objects: Objects,
        chance: random.Random,
        clock: Clock,
    ) -> None:
        self.name = name
        self.address = address
        self.hardware = SimulatedHardware(partition)
        self.root = root
        self.powered = True
        self.link_is_cut = False
        self.program: Program | None = None
        self.preparer: ClaimPreparer | None = None
        self._objects = objects
        self._chance = chance
        self._clock = clock
        (root / "plugin").mkdir(parents=True)
        (root / "cdi").mkdir()

    @property
    def kubelet_checkpoint(self) -> Path:
        return self.root / KUBELET_CHECKPOINT

    def prepared_claims(self) -> PreparedClaims:
        file = CheckpointFile(self.root / "plugin/imex-dra.json")
        return PreparedClaims(self.name, file, Directory(self.root / "cdi"), self.hardware)

    def start_program(self, fabric: Fabric, on_change: Callable[[], None]) -> None:
        link = Link(self._chance, watch_factor=WATCH_FACTOR, is_cut=self.link_is_cut)
        self.program = Program(f"imex node on {self.name}", link)
        client = client_of("imex-node", self._objects, link)
        self.program.start(self._main(client, fabric, on_change))

    def kill_program(self) -> None:
        if self.program is not None:
            self.program.kill()
        self.preparer = None

    def cut(self, *, cut: bool) -> None:
        self.link_is_cut = cut
        if self.program is not None:
            self.program.link.is_cut = cut

    async def _main(self, client: Client, fabric: Fabric, on_change: Callable[[], None]) -> None:
        state, clock = NodeState(self.name), self._clock
        prepared = self.prepared_claims()
        preparer = ClaimPreparer(client, state, prepared, clock)
        self.preparer = preparer
        state.update(is_publisher=True)
        reporter = NodeReporter(client, state, prepared, clock, address=self.address, period=_REPORT_PERIOD)
        publisher = DevicePublisher(client, state, clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_hardware(self.hardware, state))
            group.create_task(follow_partition(client, state))
            group.create_task(self._follow_daemon(state, fabric, on_change))
            group.create_task(follow_lasting_facts(state, clock))
            group.create_task(follow_driver(state, prepared))
            group.create_task(reporter.run())
            group.create_task(publisher.run())
            group.create_task(sweep_forever(client, state, prepared, self.kubelet_checkpoint, period=300.0))

    async def _follow_daemon(self, state: NodeState, fabric: Fabric, on_change: Callable[[], None]) -> None:
        """Stands for the link to `imex daemon`: sends member lists, receives states."""
        loop = asyncio.get_running_loop()
        while True:
            daemon = fabric.daemons.setdefault(self.name, Daemon(self.address))
            if (member_list := member_list_for_daemon(state.snapshot)) is not None:
                daemon.accept(member_list, loop.time())
                on_change()
            state.update(daemon=fabric.state(self.name, loop.time()))
            await asyncio.sleep(_POLL_PERIOD * (0.5 + self._chance.random()))
