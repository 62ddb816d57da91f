"""What `imex bandwidth` and `imex allreduce` have in common: a channel, a job, a share of the memory."""

import argparse
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from imex_dra.softimex import memory
from imex_dra.softimex.errors import SoftImexError
from imex_dra.softimex.memory import Channel
from imex_dra.softimex.ranks import Group, place

GPU = "Simulated GPU"


def run(program: Callable[[Channel, Group], int]) -> int:
    """Exit code 1, and one sentence on stderr, for whatever goes wrong."""
    name = "imex"
    try:
        where = place()
        name = f"rank {where.rank}"
        with memory.open_channel() as channel:
            group = Group(where)
            try:
                return program(channel, group)
            finally:
                group.close()
    except (SoftImexError, TimeoutError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


def device(channel: Channel, group: Group) -> int:
    return group.place.local_rank % max(1, channel.gpus)


def describe(channel: Channel) -> str:
    return f"{socket.gethostname()}/node {channel.slot} channel {channel.number}"


def fair_share(channel: Channel, group: Group) -> int:
    """Bytes that a rank may use: half of what is free, divided by the number of ranks, the same for all."""
    free = min(channel.memory_info()[0], _available())
    shares: list[int] = group.all_values(free // (2 * group.place.size))
    return min(shares)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**62


def at_least(low: int) -> Callable[[str], int]:
    """For an option that is a count."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} on")
        return int(text)

    return parse


def parse_size(text: str) -> int:
    """Bytes, with K, M or G as in nccl-tests."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    factor = factors.get(text[-1:].upper(), 0)
    return int(text[:-1]) * factor if factor else int(text)
