"""`imex allreduce`: a ring all-reduce over imported memory, with the output format of nccl-tests.

Every element of every result is verified. A wrong element makes the exit code 1.
"""

import argparse
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from imex_sandbox.softimex import processgroup, ring
from imex_sandbox.softimex.memory import Allocation, Channel
from imex_sandbox.softimex.processgroup import GPU_NAME, ProcessGroup, at_least
from imex_sandbox.softimex.ring import DATA_OFFSET, Ring

ELEMENT = 4
PERIOD = 65521
"""The number of elements after which the pattern repeats: prime, so that a misplaced chunk is detected."""


class Plan(NamedTuple):
    min_bytes: int
    max_bytes: int
    step_factor: int
    iterations: int
    warmups: int

    def within(self, share: int) -> "Plan":
        """The plan with sizes limited to the share. If all sizes exceed it, the share is the only size."""
        return self._replace(min_bytes=min(self.min_bytes, share), max_bytes=min(self.max_bytes, share))

    def sizes(self) -> Iterator[int]:
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size *= self.step_factor


class Result(NamedTuple):
    seconds: float
    wrong: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="imex allreduce",
        description="Run a verified all-reduce over all ranks.",
        epilog="In the launcher of an MPIJob: mpirun imex allreduce -b 1K -e 8M",
        allow_abbrev=False,
    )
    parser.add_argument("-b", "--minbytes", type=_size, default=1 << 10, metavar="SIZE", help="default: 1K")
    parser.add_argument("-e", "--maxbytes", type=_size, default=1 << 20, metavar="SIZE", help="default: 1M")
    parser.add_argument("-f", "--stepfactor", type=at_least(2), default=8, metavar="N", help="default: 8")
    parser.add_argument("-n", "--iters", type=at_least(0), default=2, metavar="N", help="default: 2")
    parser.add_argument(
        "-g", "--ngpus", type=int, choices=[1], default=1, metavar="1", help="GPUs per rank; must be 1"
    )
    parser.add_argument("-w", "--warmup_iters", type=at_least(0), default=1, metavar="N", help="default: 1")
    options = processgroup.parse(parser, argv)
    if options.minbytes > options.maxbytes:
        parser.error("--minbytes is larger than --maxbytes")
    plan = Plan(options.minbytes, options.maxbytes, options.stepfactor, options.iters, options.warmup_iters)
    return processgroup.run(lambda channel, group: reduce_all(channel, group, plan))


def reduce_all(
    channel: Channel, group: ProcessGroup, plan: Plan, combine: Callable[[bytes, memoryview], bytes] = ring.add
) -> int:
    requested = plan.max_bytes
    plan = plan.within(processgroup.fair_share(channel, group) // ELEMENT * ELEMENT)
    own = channel.allocate(DATA_OFFSET + plan.max_bytes, processgroup.gpu_index(channel, group))
    handles: list[str] = group.all_gather(own.export().hex())
    left = channel.import_handle(bytes.fromhex(handles[group.rank - 1]))
    header = _header(channel, group, plan, requested)
    if header:
        print(header, flush=True)
    reducer = Ring(group.rank, group.world_size, own, left, combine)
    wrong, bus_bandwidths = 0, list[float]()
    for size in plan.sizes():
        results = [_measure(group, reducer, own, size, plan, in_place) for in_place in (False, True)]
        wrong += sum(result.wrong for result in results)
        bus_bandwidths += [bandwidths(size, result.seconds, group.world_size)[1] for result in results]
        if group.rank == 0:
            print(row(size, results, group.world_size), flush=True)
    reducer.close()
    if group.rank == 0:
        print(summary(wrong, bus_bandwidths), flush=True)
    return 1 if wrong else 0


@lru_cache(maxsize=1)
def pattern(rank: int, count: int) -> bytes:
    """The data of a rank: different in every element, and small enough that no sum overflows."""
    offset = 31 * rank
    return _repeat(array("I", range(offset, offset + min(PERIOD, count))), count)


@lru_cache(maxsize=1)
def expected_sum(size: int, count: int) -> bytes:
    offset = 31 * size * (size - 1) // 2
    return _repeat(array("I", range(offset, offset + size * min(PERIOD, count), size)), count)


def count_wrong(actual: memoryview, expected: bytes) -> int:
    if actual.tobytes() == expected:
        return 0
    return sum(one != other for one, other in zip(actual.cast("I"), memoryview(expected).cast("I"), strict=True))


def bandwidths(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Algorithm bandwidth and bus bandwidth in GB/s, as nccl-tests defines them."""
    algorithm = size / max(seconds, 1e-9) / 1e9
    return algorithm, algorithm * 2 * (ranks - 1) / ranks


HEADER = """\
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \
"""  # noqa: E501, W291


def row(size: int, results: Sequence[Result], ranks: int) -> str:
    cells = ""
    for result in results:
        algorithm, bus = bandwidths(size, result.seconds, ranks)
        cells += f"  {_time(result.seconds)}  {algorithm:>6.2f}  {bus:>6.2f}  {result.wrong:>5}"
    return f"{size:>12}  {size // ELEMENT:>12}  {'int32':>8}  {'sum':>6}  {-1:>6}{cells}"


def summary(wrong: int, bus_bandwidths: Sequence[float]) -> str:
    verdict = "OK" if wrong == 0 else "FAILED"
    average = sum(bus_bandwidths) / max(1, len(bus_bandwidths))
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:g}\n#"


def _header(channel: Channel, group: ProcessGroup, plan: Plan, requested: int) -> str:
    """The header on rank 0, an empty string on the other ranks."""
    lines = [
        f"# nThread 1 nGpus 1 minBytes {plan.min_bytes} maxBytes {plan.max_bytes} step: {plan.step_factor}(factor)"
        f" warmup iters: {plan.warmups} iters: {plan.iterations} agg iters: 1 validation: 1 graph: 0"
    ]
    if plan.max_bytes < requested:
        share = f"{plan.max_bytes}, each rank's share of the free memory"
        lines.append(f"# maxBytes is reduced from {requested} to {share}")
    lines += ["#", "# Using devices"]
    where, gpu = processgroup.location(channel), processgroup.gpu_index(channel, group)
    ranks = group.gather(f"Pid {os.getpid():>6} on {where} device {gpu:>2} [{GPU_NAME}]")
    lines += [f"#  Rank {rank:>2} Group  0 {description}" for rank, description in enumerate(ranks)]
    return "\n".join([*lines, HEADER]) if ranks else ""


def _measure(group: ProcessGroup, reducer: Ring, own: Allocation, size: int, plan: Plan, in_place: bool) -> Result:
    """The average time of the slowest rank, and the number of wrong elements of all ranks."""
    seconds, wrong = 0.0, 0
    for iteration in range(plan.warmups + plan.iterations):
        result = _run_once(group, reducer, own, size, in_place)
        wrong += result.wrong
        seconds += result.seconds if iteration >= plan.warmups else 0.0
    results: list[list[float]] = group.all_gather([seconds / max(1, plan.iterations), wrong])
    return Result(max(average for average, _ in results), int(sum(count for _, count in results)))


def _run_once(group: ProcessGroup, reducer: Ring, own: Allocation, size: int, in_place: bool) -> Result:
    data = own.view()[DATA_OFFSET : DATA_OFFSET + size]
    sent = pattern(group.rank, size // ELEMENT)
    if in_place:
        data[:] = sent
    group.barrier()
    began = time.perf_counter()
    if not in_place:
        data[:] = sent
    reducer.reduce(size, ELEMENT)
    seconds = time.perf_counter() - began
    wrong = count_wrong(data, expected_sum(group.world_size, size // ELEMENT))
    group.barrier()  # no rank may overwrite its data while the right neighbor still reads it
    return Result(seconds, wrong)


def _repeat(period: "array[int]", count: int) -> bytes:
    return (period * (count // len(period) + 1))[:count].tobytes() if count else b""


def _time(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:>7.0f}" if microseconds >= 10000 else f"{microseconds:>7.1f}"


def _size(text: str) -> int:
    size = parse_size(text)
    if size < ELEMENT or size % ELEMENT:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of the element size of {ELEMENT} bytes")
    return size


def parse_size(text: str) -> int:
    """Bytes, with the suffixes K, M or G of nccl-tests."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    factor = factors.get(text[-1:].upper(), 0)
    return int(text[:-1]) * factor if factor else int(text)


if __name__ == "__main__":
    sys.exit(main())
