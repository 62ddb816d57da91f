"""A cluster on paper: its name is held, its files and its socket are real, and requests are written down."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_dra.hardware.simulated import HardwareFile
from imex_dra.sandbox.cluster.handle import Cluster, Description, NodeEntry
from imex_dra.sandbox.cluster.hold import Hold
from imex_dra.sandbox.cluster.places import Places, claim_directory
from imex_dra.sandbox.control import Request, serving
from imex_dra.sandbox.noderoot import NodeRoot

PARTITION = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"


class Paper:
    def __init__(self, name: str) -> None:
        self.places = Places(name)
        self.requests: list[str] = []
        self.refused: set[str] = set()
        """What it says no to."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.places.name)

    async def answer(self, request: Request) -> Any:
        options = [f"{key}={value}" for key, value in request.options.items() if value]
        words = " ".join(filter(None, [request.do, request.program, request.node, *options]))
        if words in self.refused:
            raise Rejected(f"can't {words}")
        self.requests.append(words)


@contextmanager
def paper_cluster(name: str) -> Iterator[Paper]:
    paper = Paper(name)
    claim_directory(paper.places.run.parent)
    for directory in (paper.places.run, paper.places.state):
        directory.mkdir(parents=True)
    entries = tuple(
        NodeEntry(f"r0-n0{number}", "r0", f"127.200.0.{10 + number}", PARTITION) for number in range(3)
    )
    for entry in entries:
        hardware = HardwareFile(Fabric(FabricState.OK), PARTITION, driver_version="580.95.05", boot_id="first")
        NodeRoot(paper.places.node(entry.name)).make(hardware, address=entry.address)
    paper.places.description.write_bytes(msgspec.json.encode(Description(name, 0, "https://127.0.0.1:1", entries)))
    hold = Hold(name)
    try:
        with _served(paper):
            yield paper
    finally:
        hold.release()


@contextmanager
def _served(paper: Paper) -> Iterator[None]:
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(paper.places.control, paper.answer):
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
