"""A simulated node: hardware, disk, IMEX daemon, and the real node program, of which there can be two at once."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric as FabricReport
from imex_dra.api.nvlinknode import FabricState
from imex_dra.base.clock import Clock
from imex_dra.base.waiting import wait_any
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits, DeviceNode
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.client import Client
from imex_dra.node.checkpoint import CheckpointFile
from imex_dra.node.devices import DevicePublisher
from imex_dra.node.lasting import follow_lasting_facts
from imex_dra.node.prepare import ClaimPreparer
from imex_dra.node.prepared import PreparedClaims
from imex_dra.node.program import publisher_lock
from imex_dra.node.report import NodeReporter
from imex_dra.node.state import NodeState, follow_hardware, follow_partition, member_list_for_daemon
from imex_dra.node.sweep import KUBELET_CHECKPOINT, follow_driver, sweep_forever
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.simulation.disk import Disk
from imex_sandbox.simulation.imex import Daemon, Fabric
from imex_sandbox.simulation.loop import owner, report_failure
from imex_sandbox.simulation.network import ApiServer, Link, client_of
from imex_sandbox.simulation.process import Program

_REPORT_PERIOD = 600.0
WATCH_FACTOR = 12.0


class SimulatedHardware:
    period = 60.0

    def __init__(self, partition: PartitionId, channel_count: int) -> None:
        self._placements = [(0.0, partition)]
        """Since when the node has been in which partition."""
        self.read_at: dict[object, float] = {}
        """When each program of the node last read it."""
        self.channel_count = channel_count
        self.boot = 1
        self.major = 500
        self.broken = ""
        self.moves = 0
        self.moved_at = 0.0

    @property
    def partition(self) -> PartitionId:
        return self._placements[-1][1]

    def partitions_since(self, time: float) -> list[str]:
        """In which the node was then or later, the latest one last."""
        begins = max(number for number, (since, _) in enumerate(self._placements) if since <= time)
        return [partition for _, partition in self._placements[begins:]]

    def move(self, partition: PartitionId) -> None:
        self.moves += 1
        self.moved_at = asyncio.get_running_loop().time()
        self._placements.append((self.moved_at, partition))

    async def read(self) -> Reading:
        self.read_at[owner.get()] = asyncio.get_running_loop().time()
        if self.broken:
            fabric, partition = FabricReport(FabricState.BROKEN, self.broken), PartitionId("")
        else:
            fabric, partition = FabricReport(FabricState.OK), self.partition
        boot_id = f"boot-{self.boot}"
        return Reading(fabric, partition, "580.1", self.channel_count, boot_id=boot_id, channel_major=self.major)

    def container_edits(self, claim_uid: str, channels: Sequence[int]) -> ContainerEdits:
        nodes = tuple(DeviceNode(f"/dev/channel{channel}", self.major, channel, "c") for channel in channels)
        return ContainerEdits(device_nodes=nodes)

    def remove_devices(self, claim_uid: str) -> None:
        pass

    def claims_with_devices(self) -> set[str]:
        return set()


class NodeProgram(Program):
    preparer: ClaimPreparer | None = None


class SimulatedNode:
    """Everything that survives its programs."""

    def __init__(
        self,
        name: str,
        address: str,
        hardware: SimulatedHardware,
        root: Path,
        objects: Objects,
        server: ApiServer,
        fabric: Fabric,
        generator: Callable[[str], random.Random],
        clock: Clock,
    ) -> None:
        self.name = name
        self.address = address
        self.hardware = hardware
        self.root = root
        self.powered = True
        self.is_cut = False
        """Off from the API."""
        self.liveness_changed = asyncio.Event()
        """Set at the next change; take it before reading."""
        self.programs: list[NodeProgram] = []
        """Those that run; the newest is the last one."""
        self.disk = Disk(root, generator(f"disk of {name}"), clock.monotonic)
        self.ctl_delay = 1.0
        self.sweep_period = 300.0
        self._objects = objects
        self._server = server
        self._fabric = fabric
        self._generator = generator
        self._clock = clock
        self._started = 0
        self._watchers: set[asyncio.Task[None]] = set()
        (root / "plugin").mkdir(parents=True)
        (root / "cdi").mkdir()

    @property
    def kubelet_checkpoint(self) -> Path:
        return self.root / KUBELET_CHECKPOINT

    @property
    def checkpoint(self) -> Path:
        return self.root / "plugin/imex-dra.json"

    def start_program(self) -> None:
        self._started += 1
        name = f"imex node {self._started} on {self.name}"
        link = Link(self._generator(name), self._server, watch_factor=WATCH_FACTOR, cut=self.is_cut)
        program = NodeProgram(name, link, self.disk)
        self.programs = [*self.running(), program]
        program.start(self._main(program, client_of("imex-node", self._objects, link)))
        watcher = asyncio.create_task(self._watch(program))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        watcher.add_done_callback(report_failure)

    async def _watch(self, program: NodeProgram) -> None:
        """As the kubelet does: a container that has ended by itself is started again."""
        try:
            await program.ended()
        except Exception as error:
            if not self.disk.is_faulty or not _is_only(error, OSError):
                raise
        await asyncio.sleep(10.0)
        if not program.killed and self.powered and not self.running():
            self.start_program()

    def running(self) -> list[NodeProgram]:
        return [program for program in self.programs if program.running]

    def hardware_known_since(self, now: float) -> float:
        """When the hardware was read that any of its programs knows: they read it once a minute, and may hang."""
        return min([now, *(self.hardware.read_at.get(program, now) for program in self.running())])

    def kill_programs(self) -> None:
        for program in self.programs:
            program.kill()
        self.programs = []

    @property
    def is_alive(self) -> bool:
        """Whether its kubelet can report."""
        return self.powered and not self.is_cut

    def set_liveness(self, *, powered: bool | None = None, is_cut: bool | None = None) -> None:
        self.powered = self.powered if powered is None else powered
        self.is_cut = self.is_cut if is_cut is None else is_cut
        changed, self.liveness_changed = self.liveness_changed, asyncio.Event()
        changed.set()

    def cut(self, *, cut: bool) -> None:
        self.set_liveness(is_cut=cut)
        for program in self.programs:
            program.link.cut = cut

    async def _main(self, program: NodeProgram, client: Client) -> None:
        """As in `imex_dra.node.program.run`, without gRPC and the manager of nvidia-imex."""
        state, clock, chance = NodeState(self.name), self._clock, program.link.chance
        state.update(address=self.address)
        checkpoint = CheckpointFile(self.checkpoint)
        prepared = PreparedClaims(self.name, checkpoint, Directory(self.root / "cdi"), self.hardware)
        program.preparer = ClaimPreparer(client, state, prepared, clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_hardware(self.hardware, state))
            group.create_task(follow_partition(client, state))
            group.create_task(self._follow_daemon(program, state, chance))
            group.create_task(follow_lasting_facts(state, clock))
            group.create_task(follow_driver(state, prepared))
            reporter = NodeReporter(client, state, prepared, clock, period=_REPORT_PERIOD)
            group.create_task(self._publish(state, reporter, DevicePublisher(client, state, clock)))
            group.create_task(
                sweep_forever(client, state, prepared, self.kubelet_checkpoint, period=self.sweep_period)
            )

    async def _publish(self, state: NodeState, reporter: NodeReporter, publisher: DevicePublisher) -> None:
        async with publisher_lock(self.root / "plugin/publisher.lock"), asyncio.TaskGroup() as group:
            state.update(is_publisher=True)
            group.create_task(reporter.run())
            group.create_task(publisher.run())

    async def _follow_daemon(self, program: NodeProgram, state: NodeState, chance: random.Random) -> None:
        """Stands for the manager of nvidia-imex."""
        fabric, loop = self._fabric, asyncio.get_running_loop()
        while not program.killed:
            daemon = fabric.daemons.setdefault(self.name, Daemon(self.address))
            changed, daemons_changed = state.changed, fabric.changed
            desired = member_list_for_daemon(state.snapshot) if state.snapshot.is_publisher else None
            if desired is not None and daemon.accept(desired, loop.time()):
                fabric.notify()
                continue
            state.update(daemon=fabric.state(self.name, loop.time()))
            await wait_any(changed, daemons_changed)
            await asyncio.sleep(self.ctl_delay * (0.2 + chance.random()))


def _is_only(error: Exception, kind: type[Exception]) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(kind)[1] is None
    return isinstance(error, kind)
