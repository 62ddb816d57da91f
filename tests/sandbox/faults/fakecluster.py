"""A cluster without programs: its lock, files and control socket are real, and it records the requests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.handle import Cluster, Description, NodeEntry
from imex_sandbox.cluster.lock import ClusterLock
from imex_sandbox.cluster.paths import ClusterPaths, create_private_directory
from imex_sandbox.control import Request, serving
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile

PARTITION = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"


class FakeCluster:
    def __init__(self, name: str) -> None:
        self.paths = ClusterPaths(name)
        self.requests: list[str] = []
        self.refused: set[str] = set()
        """Requests that fail."""

    @property
    def handle(self) -> Cluster:
        return Cluster(self.paths.name)

    async def answer(self, request: Request) -> Any:
        options = [f"{key}={value}" for key, value in request.options.items() if value]
        text = " ".join(filter(None, [request.action, request.program, request.node, *options]))
        if text in self.refused:
            raise Rejected(f"cannot {text}")
        self.requests.append(text)


@contextmanager
def running_fake_cluster(name: str) -> Iterator[FakeCluster]:
    fake = FakeCluster(name)
    create_private_directory(fake.paths.run.parent)
    for directory in (fake.paths.run, fake.paths.state):
        directory.mkdir(parents=True)
    entries = tuple(
        NodeEntry(f"r0-n0{number}", "r0", f"127.200.0.{10 + number}", PARTITION) for number in range(3)
    )
    for entry in entries:
        hardware = HardwareFile(Fabric(FabricState.OK), PARTITION, driver_version="580.95.05", boot_id="first")
        NodeRoot(fake.paths.node(entry.name)).make(hardware, address=entry.address)
    fake.paths.description.write_bytes(msgspec.json.encode(Description(name, 0, entries)))
    lock = ClusterLock(name)
    try:
        with _serving_in_thread(fake):
            yield fake
    finally:
        lock.release()


@contextmanager
def _serving_in_thread(fake: FakeCluster) -> Iterator[None]:
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(fake.paths.control_socket, fake.answer):
            ready.set()
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
