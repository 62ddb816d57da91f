"""`imex node` is killed and upgraded a hundred times while two nodes exchange memory: nvidia-imex does not notice.

The programs are the real ones: soft IMEX under its supervisor, and `imex node` as a process, with a control plane.
The test writes the NVLinkPartition, as the controller does: each time with another address of a third member, so
that there is always something to apply.
"""

import asyncio
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta
from imex_dra.api.names import PartitionId, name_format
from imex_dra.api.nvlinknode import NVLINK_NODES, ImexState
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.api.views import NODES, Node
from imex_dra.imex.config import generation_in
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from imex_sandbox.softimex import memory
from tests.daemon.simulatednode import HARDWARE, Rack, SimulatedNode
from tests.waiting import until, until_async

PARTITION = PartitionId("2a6f7d3e-9d57-4b52-8a30-0c2f6c1be4d1.7")
RESTARTS = 50
"""Of `imex node` on each of the two nodes."""
LONGEST = 1.5
"""Seconds until a program is killed, on a machine that is too busy to start one in this time."""


class Exchange(threading.Thread):
    """Writes into the memory of another node and reads it there, until it is told to stop."""

    def __init__(self, exporter: memory.Channel, importer: memory.Channel) -> None:
        super().__init__()
        self._mine = exporter.allocate(65536)
        self._theirs = importer.import_handle(self._mine.export())
        self._stopped = threading.Event()
        self.rounds = 0
        self.error = ""

    def run(self) -> None:
        while not self._stopped.wait(0.01):
            content = f"round {self.rounds}".encode()
            try:
                self._theirs.write(0, content)
                read = self._mine.read(0, len(content))
            except Exception as error:
                self.error = str(error)
                return
            if read != content:
                self.error = f"wrote {content!r}, read {read!r}"
                return
            self.rounds += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Partition:
    """What the controller would write."""

    def __init__(self, client: Client, rack: Rack) -> None:
        self._client, self._rack = client, rack
        self._lock = asyncio.Lock()
        self.generation = 0

    async def create(self) -> None:
        spec = NVLinkPartitionSpec(max_nodes=4, name_format=name_format(PARTITION))
        await self._client.create(NVLINK_PARTITIONS, NVLinkPartition(AnnotatedMeta(name=PARTITION), spec))

    async def change(self) -> int:
        """The generation of the new member list."""
        async with self._lock:
            self.generation += 1
            addresses = {0: self._rack.address(0), 1: self._rack.address(1)}
            addresses[2] = self._rack.address(100 + self.generation % 100)
            members = [Member(f"killed-{n}", n, addresses[n], MemberState.READY) for n in addresses]
            live = await self._client.get(NVLINK_PARTITIONS, Key("", PARTITION))
            status = NVLinkPartitionStatus(generation=self.generation, members=tuple(members))
            after = structs.replace(live, status=status)
            await patch_changes(self._client, NVLINK_PARTITIONS, live, after, subresource="status")
            return self.generation


class NodeUnderTest:
    def __init__(self, rack: Rack, number: int, kubeconfig: Path, modules: Path) -> None:
        """`modules`: a directory for compiled modules, so that they are compiled once and not a hundred times."""
        self.name = f"killed-{number}"
        self.node = SimulatedNode(rack, number)
        self.node.root.write_hardware(structs.replace(HARDWARE, partition=PARTITION))
        self.supervisor = self.node.supervisor()
        self.log = rack.directory / f"imex-node-{number}.log"
        own = self.node.root.path
        self._command = [
            *("setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "imex_dra.cli", "node"),
            f"--node-name={self.name}",
            f"--address={rack.address(number)}",
            f"--hardware=simulated:{own}",
            f"--imex-dir={self.node.root.imex}",
            f"--imex-ctl={shlex.join(self.node.soft_imex('ctl'))}",
            f"--kubelet-dir={own / 'k'}",
            f"--cdi-dir={own / 'cdi'}",
            f"--kubeconfig={kubeconfig}",
            "--metrics-address=",
        ]
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(modules)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.program = self.start()
        self.managed = 0
        """How many programs had managed nvidia-imex when they were killed."""

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def written(self) -> int:
        """The generation that a program has written for nvidia-imex."""
        return generation_in(self.supervisor.find().hosts_title, PARTITION)

    def has_applied(self, generation: int) -> bool:
        """Whether nvidia-imex has read this generation."""
        return generation_in(self.supervisor.find().applied_title, PARTITION) == generation

    async def until_managed(self, generation: int) -> None:
        def managed() -> bool:
            assert self.program.poll() is None, self.log.read_text()[-3000:]
            return self.written() >= generation

        await until_async(managed, within=120, what=f"generation {generation} written by {self.name}")

    async def restart_at_random(self, partition: Partition, choice: random.Random, start_time: float) -> None:
        """Kills at every phase: the start of Python, the first requests, the work on the files of nvidia-imex."""
        for number in range(1, RESTARTS + 1):
            generation = await partition.change()
            if number % 10 == 0:
                await self.upgrade(generation)
                continue
            if number % 10 == 5:  # on a busy machine, no other one may get as far as this
                await self.until_managed(generation)
            await asyncio.sleep(choice.uniform(0.0, start_time))
            self.managed += self.written() >= generation
            self.kill()
            self.program = self.start()

    async def upgrade(self, generation: int) -> None:
        """As a DaemonSet with maxSurge: the old program ends, by SIGTERM, when the new one serves the kubelet."""
        await self.until_managed(generation)
        self.managed += 1
        before, new = self.sockets(), self.start()
        await until_async(lambda: self.sockets() - before, within=120, what="the new program serves")
        self.program.terminate()
        await asyncio.to_thread(self.program.wait, 60)
        self.program = new

    def sockets(self) -> set[str]:
        """By which programs register with the kubelet. One that was killed leaves its own behind."""
        return {path.name for path in (self.node.root.path / "k/plugins_registry").glob("*.sock")}

    def kill(self) -> None:
        self.program.kill()
        self.program.wait(60)

    def close(self) -> None:
        self.kill()
        self.supervisor.close()


@asynccontextmanager
async def connected(control_plane: EmbeddedControlPlane) -> AsyncIterator[Client]:
    client = Client.connect("test", control_plane.kubeconfig())
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def exchange(one: NodeUnderTest, other: NodeUnderTest) -> Iterator[Exchange]:
    channels = []
    for each in (one, other):
        channel = each.node.root.path / "dev/nvidia-caps-imex-channels/channel5"
        channel.touch(mode=0o666)
        socket = each.node.root.path / "run/client/imex.sock"
        until(socket.exists)
        channels.append(memory.open_channel(channel, socket))
    exporter, importer = channels
    with exporter, importer:
        probe = exporter.allocate(65536)
        until(lambda: imports(importer, probe))
        running = Exchange(exporter, importer)
        running.start()
        try:
            yield running
        finally:
            running.stop()


def imports(importer: memory.Channel, probe: memory.Allocation) -> bool:
    """Whether the two daemons are connected."""
    try:
        importer.import_handle(probe.export())
    except memory.CudaError:
        return False
    return True


async def is_ready(client: Client, node: str) -> bool:
    """As its NVLinkNode reports it."""
    return (await client.get(NVLINK_NODES, Key("", node))).status.imex_state is ImexState.READY


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_memory_is_exchanged_while_imex_node_is_killed_and_upgraded_a_hundred_times(
    rack: Rack, embedded_control_plane: EmbeddedControlPlane, tmp_path: Path
) -> None:
    async with connected(embedded_control_plane) as client:
        partition = Partition(client, rack)
        await partition.create()
        for number in range(2):
            await client.create(NODES, Node(ObjectMeta(name=f"killed-{number}")))
        await partition.change()
        kubeconfig = embedded_control_plane.kubeconfig()
        nodes = [NodeUnderTest(rack, number, kubeconfig, tmp_path) for number in range(2)]
        try:
            for each in nodes:
                await each.until_managed(1)
            with exchange(*nodes) as exchanged:
                pids = [each.supervisor.find().pid for each in nodes]
                # How long a start takes here and now, to kill at every moment of it.
                generation, began = await partition.change(), time.monotonic()
                for each in nodes:
                    each.kill()
                    each.program = each.start()
                for each in nodes:
                    await each.until_managed(generation)
                start_time = min(1.3 * (time.monotonic() - began), LONGEST)
                async with asyncio.TaskGroup() as group:
                    for number, each in enumerate(nodes):
                        group.create_task(each.restart_at_random(partition, random.Random(number), start_time))
                for each in nodes:
                    await until_async(partial(each.has_applied, partition.generation))
                    await until_async(partial(is_ready, client, each.name))
                rounds = exchanged.rounds
                until(lambda: exchanged.error or exchanged.rounds > rounds + 10)
                assert exchanged.error == ""
            found = [each.supervisor.find() for each in nodes]
            assert [each.pid for each in found] == pids
            assert [each.restarts for each in found] == [0, 0]
            managed = sum(each.managed for each in nodes)
            assert 20 <= managed < 2 * RESTARTS, "kills must hit the start and the work"
        finally:
            for each in nodes:
                each.close()
