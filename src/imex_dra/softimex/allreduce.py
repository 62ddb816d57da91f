"""`imex allreduce`: a ring all-reduce over imported memory, in the layout of nccl-tests.

Every element of every result is compared with what the sum must be; one that is wrong makes the exit code 1.
"""

import argparse
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from imex_dra.softimex import programs, ring
from imex_dra.softimex.memory import Allocation, Channel
from imex_dra.softimex.programs import GPU, at_least, parse_size
from imex_dra.softimex.ranks import Group
from imex_dra.softimex.ring import DATA, Ring

UNIT = 4
PERIOD = 65521
"""Elements after which the pattern repeats: prime, so that a chunk in the wrong place does not fit."""


class Plan(NamedTuple):
    smallest: int
    largest: int
    factor: int
    iterations: int
    warmups: int

    def within(self, share: int) -> "Plan":
        """The same with no size above the share; if all are, the share itself, so that something is done."""
        return self._replace(smallest=min(self.smallest, share), largest=min(self.largest, share))

    def sizes(self) -> Iterator[int]:
        size = self.smallest
        while size <= self.largest:
            yield size
            size *= self.factor


class Result(NamedTuple):
    seconds: float
    wrong: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="imex allreduce", description="A verified all-reduce over all ranks.")
    parser.add_argument("-b", "--minbytes", type=_size, default=1 << 10, metavar="SIZE", help="default: 1K")
    parser.add_argument("-e", "--maxbytes", type=_size, default=1 << 20, metavar="SIZE", help="default: 1M")
    parser.add_argument("-f", "--stepfactor", type=at_least(2), default=8, metavar="N", help="default: 8")
    parser.add_argument("-n", "--iters", type=at_least(0), default=2, metavar="N", help="default: 2")
    parser.add_argument("-g", "--ngpus", type=int, choices=[1], default=1, metavar="1", help="GPUs of a rank: one")
    parser.add_argument("-w", "--warmup_iters", type=at_least(0), default=1, metavar="N", help="default: 1")
    options = parser.parse_args(argv)
    if options.minbytes > options.maxbytes:
        parser.error("--minbytes is larger than --maxbytes: there would be nothing to do")
    plan = Plan(options.minbytes, options.maxbytes, options.stepfactor, options.iters, options.warmup_iters)
    return programs.run(lambda channel, group: reduce_all(channel, group, plan))


def reduce_all(
    channel: Channel, group: Group, plan: Plan, plus: Callable[[bytes, memoryview], bytes] = ring.add
) -> int:
    asked = plan.largest
    plan = plan.within(programs.fair_share(channel, group) // UNIT * UNIT)
    own = channel.allocate(DATA + plan.largest, programs.device(channel, group))
    handles: list[str] = group.all_values(own.export().hex())
    left = channel.attach(bytes.fromhex(handles[group.place.rank - 1]))
    introduction = _introduce(channel, group, plan, asked)
    if introduction:
        print(introduction, flush=True)
    around = Ring(group.place.rank, group.place.size, own, left, plus)
    wrong, busbws = 0, list[float]()
    for size in plan.sizes():
        results = [_measure(group, around, own, size, plan, in_place) for in_place in (False, True)]
        wrong += sum(result.wrong for result in results)
        busbws += [bandwidths(size, result.seconds, group.place.size)[1] for result in results]
        if group.place.rank == 0:
            print(row(size, results, group.place.size), flush=True)
    around.close()
    if group.place.rank == 0:
        print(summary(wrong, busbws), flush=True)
    return 1 if wrong else 0


@lru_cache(maxsize=1)
def pattern(rank: int, count: int) -> bytes:
    """What a rank contributes: different in every element, small enough for all sums."""
    offset = 31 * rank
    return _repeat(array("I", range(offset, offset + min(PERIOD, count))), count)


@lru_cache(maxsize=1)
def expected(size: int, count: int) -> bytes:
    offset = 31 * size * (size - 1) // 2
    return _repeat(array("I", range(offset, offset + size * min(PERIOD, count), size)), count)


def count_wrong(got: memoryview, wanted: bytes) -> int:
    if got.tobytes() == wanted:
        return 0
    return sum(one != other for one, other in zip(got.cast("I"), memoryview(wanted).cast("I"), strict=True))


def bandwidths(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Of the algorithm, and what the bus carries for it."""
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
    return f"{size:>12}  {size // UNIT:>12}  {'int32':>8}  {'sum':>6}  {-1:>6}{cells}"


def summary(wrong: int, busbws: Sequence[float]) -> str:
    verdict = "OK" if wrong == 0 else "FAILED"
    average = sum(busbws) / max(1, len(busbws))
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:g}\n#"


def _introduce(channel: Channel, group: Group, plan: Plan, asked: int) -> str:
    lines = [
        f"# nThread 1 nGpus 1 minBytes {plan.smallest} maxBytes {plan.largest} step: {plan.factor}(factor)"
        f" warmup iters: {plan.warmups} iters: {plan.iterations} agg iters: 1 validation: 1 graph: 0"
    ]
    if plan.largest < asked:
        lines.append(f"# maxBytes is not {asked}: {plan.largest} is each rank's share of the free memory")
    lines += ["#", "# Using devices"]
    where, gpu = programs.describe(channel), programs.device(channel, group)
    places = group.gather(f"Pid {os.getpid():>6} on {where} device {gpu:>2} [{GPU}]")
    lines += [f"#  Rank {rank:>2} Group  0 {place}" for rank, place in enumerate(places)]
    return "\n".join([*lines, HEADER]) if places else ""


def _measure(group: Group, around: Ring, own: Allocation, size: int, plan: Plan, in_place: bool) -> Result:
    """The slowest rank's average time, and everybody's wrong elements."""
    seconds, wrong = 0.0, 0
    for iteration in range(plan.warmups + plan.iterations):
        taken, mistakes = _once(group, around, own, size, in_place)
        wrong += mistakes
        seconds += taken if iteration >= plan.warmups else 0.0
    everybody: list[list[float]] = group.all_values([seconds / max(1, plan.iterations), wrong])
    return Result(max(taken for taken, _ in everybody), int(sum(mistakes for _, mistakes in everybody)))


def _once(group: Group, around: Ring, own: Allocation, size: int, in_place: bool) -> Result:
    data = own.view()[DATA : DATA + size]
    sent = pattern(group.place.rank, size // UNIT)
    if in_place:
        data[:] = sent
    group.barrier()
    began = time.perf_counter()
    if not in_place:
        data[:] = sent
    around.reduce(size, UNIT)
    seconds = time.perf_counter() - began
    wrong = count_wrong(data, expected(group.place.size, size // UNIT))
    group.barrier()
    return Result(seconds, wrong)


def _repeat(period: "array[int]", count: int) -> bytes:
    return (period * (count // len(period) + 1))[:count].tobytes() if count else b""


def _time(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:>7.0f}" if microseconds >= 10000 else f"{microseconds:>7.1f}"


def _size(text: str) -> int:
    size = parse_size(text)
    if size < UNIT or size % UNIT:
        raise argparse.ArgumentTypeError(f"{text} is not a number of whole elements of {UNIT} bytes")
    return size
