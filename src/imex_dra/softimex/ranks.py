"""Processes of one job: who they are, and how they exchange the little that is not in shared memory.

A launcher says who is who by environment variables, those of torchrun or those of OpenMPI. Rank 0 listens at
the master's address; the others find it there. A rank that is gone ends all others with its number.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from imex_dra.softimex.errors import Malformed, SoftImexError
from imex_dra.softimex.frames import Decoder, Message, encode

DEFAULT_PORT = "29500"
MEET_SECONDS = 120.0
SILENCE_SECONDS = 120.0

_VARIABLES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


class JobError(SoftImexError):
    """The job can't begin or go on; says which rank or variable is to blame."""


class Place(NamedTuple):
    rank: int
    size: int
    local_rank: int
    address: str
    port: int


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Alone, if no launcher says otherwise."""
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    texts = {
        name: environment.get(name) or environment.get(other) or defaults[name]
        for name, other in _VARIABLES.items()
    }
    texts["MASTER_PORT"] = environment.get("MASTER_PORT") or DEFAULT_PORT
    for name, text in texts.items():
        if not text.isdecimal():
            raise JobError(f"{name} is {text!r}: it must be a whole number")
    numbers = {name: int(text) for name, text in texts.items()}
    address = environment.get("MASTER_ADDR", "")
    if numbers["WORLD_SIZE"] > 1 and not address:
        raise JobError("MASTER_ADDR is not set: it names the host of rank 0 (mpirun: -x MASTER_ADDR=…)")
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise JobError(f"RANK is {numbers['RANK']} in a job of {numbers['WORLD_SIZE']}")
    rank, size, local_rank, port = numbers.values()
    return Place(rank, size, local_rank, address, port)


class Line:
    """A blocking connection between rank 0 and another rank."""

    def __init__(self, sock: socket.socket, other: str) -> None:
        sock.settimeout(SILENCE_SECONDS)
        self._sock = sock
        self._decoder = Decoder()
        self._messages: list[Message] = []
        self.other = other

    def send(self, value: Any) -> None:
        try:
            self._sock.sendall(encode({"value": value}))
        except OSError as error:
            raise JobError(f"{self.other} is gone: {error}") from error

    def receive(self) -> Any:
        try:
            while not self._messages:
                data = self._sock.recv(65536)
                if not data:
                    raise JobError(f"{self.other} is gone")
                self._messages += self._decoder.feed(data)
        except (OSError, Malformed) as error:
            raise JobError(f"{self.other} is gone: {error}") from error
        return self._messages.pop(0).get("value")

    def close(self) -> None:
        self._sock.close()


class Group:
    """All ranks of a job. Every rank must make the same calls in the same order."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lines = self._listen() if place.rank == 0 else {0: self._join()}

    def gather(self, value: Any) -> list[Any]:
        """Rank 0 gets all values, by rank; the others get nothing."""
        if self.place.rank:
            self._lines[0].send(value)
            return []
        return [value, *(self._lines[rank].receive() for rank in range(1, self.place.size))]

    def share(self, value: Any) -> Any:
        """Everybody gets rank 0's value."""
        if self.place.rank:
            return self._lines[0].receive()
        for line in self._lines.values():
            line.send(value)
        return value

    def all_values(self, value: Any) -> list[Any]:
        shared: list[Any] = self.share(self.gather(value))
        return shared

    def barrier(self) -> None:
        self.all_values(None)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _listen(self) -> dict[int, Line]:
        lines: dict[int, Line] = {}
        if self.place.size == 1:
            return lines
        with _listening(self.place) as listening:
            while len(lines) < self.place.size - 1:
                line = Line(_accept(listening, self.place.size, lines), "a rank")
                rank = line.receive()
                if rank not in range(1, self.place.size) or rank in lines:
                    raise JobError(f"two ranks have the number {rank}, or none can have it: check RANK")
                line.other = f"rank {rank}"
                lines[rank] = line
        return lines

    def _join(self) -> Line:
        deadline = time.monotonic() + MEET_SECONDS
        while True:
            try:
                sock = socket.create_connection((self.place.address, self.place.port), timeout=MEET_SECONDS)
            except OSError as error:
                if time.monotonic() > deadline:
                    where = f"{self.place.address} port {self.place.port}"
                    raise JobError(f"rank 0 is not at {where}: {error}. Check MASTER_ADDR") from error
                time.sleep(0.05)
                continue
            line = Line(sock, "rank 0")
            line.send(self.place.rank)
            return line


def _listening(place: Place) -> socket.socket:
    try:
        family, _, _, _, endpoint = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(endpoint[:2], family=family, backlog=place.size)
    except OSError as error:
        where = f"{place.address} port {place.port}"
        raise JobError(f"rank 0 can't listen at {where}: {error}. Check MASTER_ADDR and MASTER_PORT") from error
    listening.settimeout(MEET_SECONDS)
    return listening


def _accept(listening: socket.socket, size: int, present: Mapping[int, Line]) -> socket.socket:
    try:
        return listening.accept()[0]
    except OSError as error:
        missing = [rank for rank in range(1, size) if rank not in present]
        raise JobError(f"ranks {missing} did not come within {MEET_SECONDS:g} s") from error
