"""The process group of a multi-node job: this rank, its connections to the others, and its share of the memory.

A launcher sets the environment variables of torchrun or Open MPI. Rank 0 listens at the master address, and the
other ranks connect to it. A rank that ends unexpectedly ends all others, with an error that names it.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imex_sandbox.softimex import memory
from imex_sandbox.softimex.errors import JobError, Malformed, SoftImexError
from imex_sandbox.softimex.frames import Decoder, Message, encode
from imex_sandbox.softimex.memory import Channel

DEFAULT_PORT = "29500"
RENDEZVOUS_SECONDS = 120.0
RECEIVE_SECONDS = 120.0
GPU_NAME = "Simulated GPU"

_OPEN_MPI_NAMES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


class RankInfo(NamedTuple):
    rank: int
    world_size: int
    local_rank: int
    master_address: str
    master_port: int


def read_rank(environment: Mapping[str, str] = os.environ) -> RankInfo:
    """The rank that the launcher assigned; without a launcher, the only rank of its job."""
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    texts = {
        name: environment.get(name) or environment.get(other) or defaults[name]
        for name, other in _OPEN_MPI_NAMES.items()
    }
    texts["MASTER_PORT"] = environment.get("MASTER_PORT") or DEFAULT_PORT
    for name, text in texts.items():
        if not text.isdecimal():
            raise JobError(f"{name} is {text!r}, but must be a non-negative integer")
    rank, size, local_rank, port = (int(text) for text in texts.values())
    address = environment.get("MASTER_ADDR", "")
    if size > 1 and not address:
        raise JobError("MASTER_ADDR is not set: set it to the host of rank 0 (mpirun: -x MASTER_ADDR=…)")
    if rank >= size:
        raise JobError(f"RANK is {rank}, but must be less than the WORLD_SIZE of {size}")
    return RankInfo(rank, size, local_rank, address, port)


class RankConnection:
    """A blocking connection between rank 0 and another rank."""

    def __init__(self, sock: socket.socket, other: str) -> None:
        sock.settimeout(RECEIVE_SECONDS)
        self._sock = sock
        self._decoder = Decoder()
        self._messages: list[Message] = []
        self.other = other

    def send(self, value: Any) -> None:
        try:
            self._sock.sendall(encode({"value": value}))
        except OSError as error:
            raise JobError(f"lost the connection to {self.other}: {error}") from error

    def receive(self) -> Any:
        try:
            while not self._messages:
                data = self._sock.recv(65536)
                if not data:
                    raise JobError(f"lost the connection to {self.other}")
                self._messages += self._decoder.feed(data)
        except (OSError, Malformed) as error:
            raise JobError(f"lost the connection to {self.other}: {error}") from error
        return self._messages.pop(0).get("value")

    def close(self) -> None:
        self._sock.close()


class ProcessGroup:
    """All ranks of a job. Every rank must make the same calls in the same order."""

    def __init__(self, info: RankInfo) -> None:
        self.rank, self.world_size, self.local_rank = info.rank, info.world_size, info.local_rank
        self._connections = _accept_ranks(info) if info.rank == 0 else {0: _join(info)}

    def gather(self, value: Any) -> list[Any]:
        """Rank 0 gets the values of all ranks, in order; the other ranks get an empty list."""
        if self.rank:
            self._connections[0].send(value)
            return []
        return [value, *(self._connections[rank].receive() for rank in range(1, self.world_size))]

    def broadcast(self, value: Any) -> Any:
        """Every rank gets the value of rank 0."""
        if self.rank:
            return self._connections[0].receive()
        for connection in self._connections.values():
            connection.send(value)
        return value

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = self.broadcast(self.gather(value))
        return values

    def barrier(self) -> None:
        self.all_gather(None)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _accept_ranks(info: RankInfo) -> dict[int, RankConnection]:
    connections: dict[int, RankConnection] = {}
    if info.world_size == 1:
        return connections
    with _listen(info) as listening:
        while len(connections) < info.world_size - 1:
            connection = RankConnection(_accept(listening, info.world_size, connections), "a rank")
            rank = connection.receive()
            if rank not in range(1, info.world_size) or rank in connections:
                raise JobError(f"rank {rank!r} joined twice or is not in the job: check RANK")
            connection.other = f"rank {rank}"
            connections[rank] = connection
    return connections


def _join(info: RankInfo) -> RankConnection:
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            sock = socket.create_connection((info.master_address, info.master_port), timeout=RENDEZVOUS_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                where = f"{info.master_address} port {info.master_port}"
                raise JobError(f"cannot connect to rank 0 at {where}: {error}. Check MASTER_ADDR") from error
            time.sleep(0.05)
            continue
        connection = RankConnection(sock, "rank 0")
        connection.send(info.rank)
        return connection


def _listen(info: RankInfo) -> socket.socket:
    address, port = info.master_address, info.master_port
    try:
        family, _, _, _, endpoint = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(endpoint[:2], family=family, backlog=info.world_size)
    except OSError as error:
        raise JobError(
            f"rank 0 cannot listen at {address} port {port}: {error}. Check MASTER_ADDR and MASTER_PORT"
        ) from error
    listening.settimeout(RENDEZVOUS_SECONDS)
    return listening


def _accept(listening: socket.socket, size: int, joined: Mapping[int, RankConnection]) -> socket.socket:
    try:
        return listening.accept()[0]
    except OSError as error:
        missing = [rank for rank in range(1, size) if rank not in joined]
        raise JobError(f"ranks {missing} did not join within {RENDEZVOUS_SECONDS:g} s") from error


def run(program: Callable[[Channel, ProcessGroup], int]) -> int:
    """Run a program as a rank of its job. On an error, print one line on stderr and return 1."""
    name = "imex"
    try:
        info = read_rank()
        name = f"rank {info.rank}"
        with memory.open_channel() as channel:
            group = ProcessGroup(info)
            try:
                return program(channel, group)
            finally:
                group.close()
    except (SoftImexError, TimeoutError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


def gpu_index(channel: Channel, group: ProcessGroup) -> int:
    return group.local_rank % max(1, channel.gpus)


def location(channel: Channel) -> str:
    return f"{socket.gethostname()}/node {channel.node_index} channel {channel.number}"


def fair_share(channel: Channel, group: ProcessGroup) -> int:
    """The bytes that each rank may use: half of the free memory, divided by the number of ranks."""
    free = min(channel.memory_info()[0], _available_memory())
    shares: list[int] = group.all_gather(free // (2 * group.world_size))
    return min(shares)


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**62


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags that the real program has and this one does not are ignored, and rank 0 says so."""
    options, unknown = parser.parse_known_args(argv)
    if unknown and read_rank().rank == 0:
        print(
            f"{parser.prog}: ignored, because soft IMEX has no such option: {' '.join(unknown)}", file=sys.stderr
        )
    return options


def at_least(low: int) -> Callable[[str], int]:
    """The type of an integer option."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
        return int(text)

    return parse
