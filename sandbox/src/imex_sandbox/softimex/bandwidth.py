"""`imex bandwidth`: copies memory between every two ranks, with the output format of nvbandwidth.

Read: a rank copies the other rank's memory to its own. Write: it copies its own memory to the other rank's.
Only one rank measures at a time, so that ranks do not compete for bandwidth. Every copy is verified.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from imex_sandbox.softimex import processgroup
from imex_sandbox.softimex.errors import JobError
from imex_sandbox.softimex.memory import Allocation, Channel, Import
from imex_sandbox.softimex.processgroup import GPU_NAME, ProcessGroup, at_least

READ = "multinode_device_to_device_memcpy_read_ce"
WRITE = "multinode_device_to_device_memcpy_write_ce"
ARROWS = {READ: "->", WRITE: "<-"}
MIB = 1 << 20

Row = list[float | None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="imex bandwidth",
        description="Copy memory between every two ranks.",
        epilog="In the launcher of an MPIJob: mpirun imex bandwidth -b 16",
        allow_abbrev=False,
    )
    parser.add_argument("-t", "--testcase", nargs="+", choices=list(ARROWS), help="run only these tests")
    parser.add_argument("-b", "--bufferSize", type=at_least(1), default=4, metavar="MIB", help="default: 4 MiB")
    parser.add_argument(
        "-i", "--testSamples", type=at_least(1), default=2, metavar="N", help="best of N; default: 2"
    )
    options = processgroup.parse(parser, argv)
    tests = options.testcase or list(ARROWS)
    size = options.bufferSize * MIB
    return processgroup.run(lambda channel, group: measure(channel, group, tests, size, options.testSamples))


def measure(channel: Channel, group: ProcessGroup, tests: Sequence[str], size: int, samples: int) -> int:
    share = processgroup.fair_share(channel, group)
    own = channel.allocate(min(size, max(MIB, share)), processgroup.gpu_index(channel, group))
    handles: list[str] = group.all_gather(own.export().hex())
    others = {
        rank: channel.import_handle(bytes.fromhex(handle))
        for rank, handle in enumerate(handles)
        if rank != group.rank
    }
    header = _header(channel, group, size, own.size)
    if group.rank == 0:
        print(header, flush=True)
    for test in tests:
        rows = _rows(group, own, others, test, samples)
        if rows:
            print(render(test, rows), flush=True)
    return 0


def render(test: str, rows: Sequence[Row]) -> str:
    """The output of one test."""
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


def _header(channel: Channel, group: ProcessGroup, requested: int, size: int) -> str:
    ranks = group.gather(
        f"({processgroup.location(channel)}): device {processgroup.gpu_index(channel, group)}: {GPU_NAME}"
    )
    lines = ["imex bandwidth (soft IMEX), in the output format of nvbandwidth", ""]
    lines += [f"Process {rank} {description}" for rank, description in enumerate(ranks)]
    if size < requested:
        share = f"{size} bytes, each rank's share of the free memory"
        lines += ["", f"The buffer size is reduced from {requested} to {share}"]
    return "\n".join([*lines, ""])


def _rows(group: ProcessGroup, own: Allocation, others: dict[int, Import], test: str, samples: int) -> list[Row]:
    """Measure rank by rank while the others wait. Rank 0 gets all rows, the other ranks none."""
    row: Row = []
    for turn in range(group.world_size):
        group.barrier()
        if turn == group.rank:
            row = [
                _measure_pair(own, others.get(rank), test, turn, rank, samples) for rank in range(group.world_size)
            ]
    group.barrier()
    return group.gather(row)


def _measure_pair(
    own: Allocation, other: Import | None, test: str, rank: int, other_rank: int, samples: int
) -> float | None:
    if other is None:
        return None
    mine, theirs = own.view(), other.view()
    source, target = (theirs, mine) if test == READ else (mine, theirs)
    source[:] = _pattern(other_rank if test == READ else rank, len(source))
    best = min(_copy_seconds(source, target) for _ in range(samples))
    if source.tobytes() != target.tobytes():
        raise JobError(f"the data that rank {rank} copied from or to rank {other_rank} is wrong")
    other.check()
    return round(len(source) / best / 1e9, 2)


def _copy_seconds(source: memoryview, target: memoryview) -> float:
    began = time.perf_counter()
    target[:] = source
    return max(time.perf_counter() - began, 1e-9)


def _pattern(rank: int, size: int) -> bytes:
    period = bytes((rank + number) % 251 for number in range(251))
    return (period * (size // 251 + 1))[:size]


if __name__ == "__main__":
    sys.exit(main())
