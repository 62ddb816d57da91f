"""`imex node` is killed again and again while two nodes exchange memory: nvidia-imex does not notice."""

import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from imex_dra.base.files import write_atomically
from imex_dra.imex.config import generation_in
from imex_sandbox.softimex import memory
from tests.daemon.simulatednode import PARTITION, Rack, RunningSupervisor, SimulatedNode
from tests.paths import ROOT
from tests.waiting import until

KILLS, SECONDS = 100, 60


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


class ManagedNode:
    def __init__(self, rack: Rack, number: int) -> None:
        self.rack, self.number = rack, number
        self.node = SimulatedNode(rack, number)
        self.supervisor: RunningSupervisor = self.node.supervisor()
        self._list = rack.directory / f"{number}.json"
        self.desire(1)
        ctl = shlex.join(self.node.soft_imex("ctl"))
        command = ["-m", "tests.daemon.manager_program", str(self.node.root.imex), ctl, str(self._list)]
        self._command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *command]
        self.program = self.start()

    def desire(self, generation: int) -> None:
        """In every generation a third node has another address."""
        addresses = {2: self.rack.address(100 + generation % 100)}
        desired = self.rack.member_list(self.number, 0, 1, generation=generation, addresses=addresses)
        write_atomically(self._list, msgspec.json.encode(desired))

    def start(self) -> "subprocess.Popen[bytes]":
        with (self.rack.directory / "log").open("ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        self.program.kill()
        self.program.wait(60)

    def close(self) -> None:
        self.kill()
        self.supervisor.close()


@contextmanager
def exchange(one: ManagedNode, other: ManagedNode) -> Iterator[Exchange]:
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


@pytest.mark.slow
def test_memory_is_exchanged_while_the_node_programs_are_killed(rack: Rack) -> None:
    random_ = random.Random(0)
    nodes = [ManagedNode(rack, number) for number in (0, 1)]
    kills = 0
    try:
        with exchange(*nodes) as exchanged:
            pids = [each.supervisor.find().pid for each in nodes]
            deadline = time.monotonic() + SECONDS
            while kills < KILLS and time.monotonic() < deadline:
                for each in nodes:
                    each.desire(2 + kills)
                time.sleep(random_.uniform(0.0, 1.0))
                victim = nodes[kills % 2]
                victim.kill()
                victim.program = victim.start()
                kills += 1
            for each in nodes:
                each.supervisor.until(lambda found: generation_in(found.applied_title, PARTITION) == 1 + kills)
            rounds = exchanged.rounds
            until(lambda: exchanged.error or exchanged.rounds > rounds + 10)
            assert exchanged.error == ""
        assert kills >= 20
        found = [each.supervisor.find() for each in nodes]
        assert [each.pid for each in found] == pids
        assert [each.restarts for each in found] == [0, 0]
    finally:
        for each in nodes:
            each.close()
