"""`imex bandwidth`: copies between the memory of every two ranks, in the layout of nvbandwidth.

Read: a rank copies the other's memory into its own. Write: its own into the other's. Ranks measure one after
the other, so that they don't share what they measure, and every copy is verified.
"""

import argparse
import time
from collections.abc import Sequence

from imex_dra.softimex import programs
from imex_dra.softimex.memory import Allocation, Channel, Import
from imex_dra.softimex.programs import GPU, at_least
from imex_dra.softimex.ranks import Group, JobError

READ = "multinode_device_to_device_memcpy_read_ce"
WRITE = "multinode_device_to_device_memcpy_write_ce"
ARROWS = {READ: "->", WRITE: "<-"}
MIB = 1 << 20

Row = list[float | None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="imex bandwidth", description="Copies between every two ranks.")
    parser.add_argument("-t", "--testcase", choices=list(ARROWS), help="one of the tests only")
    parser.add_argument("-b", "--bufferSize", type=at_least(1), default=4, metavar="MIB", help="default: 4 MiB")
    parser.add_argument(
        "-i", "--testSamples", type=at_least(1), default=2, metavar="N", help="best of N; default: 2"
    )
    options = parser.parse_args(argv)
    tests = [options.testcase] if options.testcase else list(ARROWS)
    size = options.bufferSize * MIB
    return programs.run(lambda channel, group: measure(channel, group, tests, size, options.testSamples))


def measure(channel: Channel, group: Group, tests: Sequence[str], size: int, samples: int) -> int:
    share = programs.fair_share(channel, group)
    own = channel.allocate(min(size, max(MIB, share)), programs.device(channel, group))
    handles: list[str] = group.all_values(own.export().hex())
    others = {
        rank: channel.attach(bytes.fromhex(handle))
        for rank, handle in enumerate(handles)
        if rank != group.place.rank
    }
    introduction = _introduce(channel, group, size, own.size)
    if group.place.rank == 0:
        print(introduction, flush=True)
    for test in tests:
        rows = _rows(group, own, others, test, samples)
        if rows:
            print(render(test, rows), flush=True)
    return 0


def render(test: str, rows: Sequence[Row]) -> str:
    """One test as nvbandwidth prints it."""
    header = "".join(f"{rank:>10}" for rank in range(len(rows)))
    lines = [
        f"Running {test}.",
        f"memcpy CE GPU(row) {ARROWS[test]} GPU(column) bandwidth (GB/s)",
        f"  {header}",
    ]
    for rank, row in enumerate(rows):
        lines.append(f"{rank:>2}" + "".join("       N/A" if cell is None else f"{cell:>10.2f}" for cell in row))
    total = sum(cell for row in rows for cell in row if cell is not None)
    return "\n".join([*lines, "", f"SUM {test} {total:.2f}", ""])


def _introduce(channel: Channel, group: Group, asked: int, size: int) -> str:
    places = group.gather(f"({programs.describe(channel)}): device {programs.device(channel, group)}: {GPU}")
    lines = ["imex bandwidth, soft IMEX, in the layout of nvbandwidth", ""]
    lines += [f"Process {rank} {place}" for rank, place in enumerate(places)]
    if size < asked:
        lines += [
            "",
            f"The buffer is {size} bytes instead of {asked}: that is each rank's share of the free memory",
        ]
    return "\n".join([*lines, ""])


def _rows(group: Group, own: Allocation, others: dict[int, Import], test: str, samples: int) -> list[Row]:
    """Rank by rank, everybody else waits; rank 0 gets all rows."""
    row: Row = []
    for turn in range(group.place.size):
        group.barrier()
        if turn == group.place.rank:
            row = [_pair(own, others.get(rank), test, turn, rank, samples) for rank in range(group.place.size)]
    group.barrier()
    return group.gather(row)


def _pair(
    own: Allocation, other: Import | None, test: str, rank: int, other_rank: int, samples: int
) -> float | None:
    if other is None:
        return None
    mine, theirs = own.view(), other.view()
    source, target = (theirs, mine) if test == READ else (mine, theirs)
    source[:] = _pattern(other_rank if test == READ else rank, len(source))
    best = min(_copy_seconds(source, target) for _ in range(samples))
    if source.tobytes() != target.tobytes():
        raise JobError(f"what rank {rank} copied from or to rank {other_rank} is not what was there")
    other.check()
    return round(len(source) / best / 1e9, 2)


def _copy_seconds(source: memoryview, target: memoryview) -> float:
    began = time.perf_counter()
    target[:] = source
    return max(time.perf_counter() - began, 1e-9)


def _pattern(rank: int, size: int) -> bytes:
    period = bytes((rank + number) % 251 for number in range(251))
    return (period * (size // 251 + 1))[:size]
