"""`imex bandwidth` and `imex allreduce`, as ranks that a launcher started on several nodes."""

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.softimex import allreduce, bandwidth, programs, ring
from imex_dra.softimex.ranks import JobError, Place, place
from tests.softimex.rack import DIES_WITH_US, Rack
from tests.softimex.workload import CHANNELS, give_channels

pytestmark = pytest.mark.timeout(300)

BROKEN = """
import sys
from imex_dra.softimex import allreduce, programs, ring

plan = allreduce.Plan(1024, 1024, 2, 1, 0)
bad = lambda left, own: bytes([left[0] ^ 1]) + ring.add(left, own)[1:]
sys.exit(programs.run(lambda channel, group: allreduce.reduce_all(channel, group, plan, bad)))
"""


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    rack = Rack(3)
    for node in rack.nodes:
        give_channels(node, 3)
    rack.start()
    yield rack
    rack.close()


class Job:
    """Ranks in a round over the nodes, with the variables of torchrun or of OpenMPI."""

    def __init__(self, rack: Rack, size: int, command: list[str], mpi: bool = False, absent: int = 0) -> None:
        port = str(random.SystemRandom().randrange(20000, 30000))
        self.ranks = [
            subprocess.Popen(
                [*DIES_WITH_US, sys.executable, *command],
                env={
                    **rack.nodes[rank % 3].env,
                    **self.variables(rank, size, mpi),
                    "MASTER_ADDR": rack.nodes[0].address,
                    "MASTER_PORT": port,
                    "IMEX_CHANNEL_FILE": str(rack.nodes[rank % 3].root / CHANNELS / "channel3"),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size - absent)
        ]

    def variables(self, rank: int, size: int, mpi: bool) -> dict[str, str]:
        values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank // 3}
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
        return {name: str(value) for name, value in zip(names if mpi else values, values.values(), strict=True)}

    def end(self) -> tuple[set[int], str, str]:
        """Exit codes, what rank 0 printed, and all complaints."""
        outputs = [process.communicate(timeout=100) for process in self.ranks]
        codes = {process.returncode for process in self.ranks}
        assert not any(output for output, _ in outputs[1:])
        return codes, outputs[0][0], "".join(errors for _, errors in outputs)


def module(name: str, *arguments: str) -> list[str]:
    return ["-c", f"import sys; from imex_dra.softimex import {name}; sys.exit({name}.main())", *arguments]


def test_allreduce_is_verified_and_printed_as_nccl_tests_do(rack: Rack) -> None:
    codes, output, errors = Job(rack, 5, module("allreduce", "-b", "4", "-e", "64K", "-f", "16")).end()
    assert (codes, errors) == ({0}, "")
    lines = output.splitlines()
    assert lines[0].startswith("# nThread 1 nGpus 1 minBytes 4 maxBytes 65536 step: 16(factor)")
    assert sum(line.startswith("#  Rank") for line in lines) == 5
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert [row[:5] for row in rows] == [
        [str(size), str(size // 4), "int32", "sum", "-1"] for size in (4, 64, 1024, 16384)
    ]
    assert all(row[8] == row[12] == "0" for row in rows)
    assert "# Out of bounds values : 0 OK" in lines
    assert re.search(r"# Avg bus bandwidth    : \d", output)


def test_a_wrong_element_makes_every_rank_fail(rack: Rack) -> None:
    codes, output, errors = Job(rack, 3, ["-c", BROKEN]).end()
    assert (codes, errors) == ({1}, "")
    assert re.search(r"# Out of bounds values : [1-9]\d* FAILED", output)


def test_bandwidth_is_printed_as_nvbandwidth_does(rack: Rack) -> None:
    codes, output, errors = Job(rack, 4, module("bandwidth", "-b", "1"), mpi=True).end()
    assert (codes, errors) == ({0}, "")
    for test in (bandwidth.READ, bandwidth.WRITE):
        section = output[output.index(f"Running {test}.") :]
        rows = [line.split() for line in section.splitlines()[3:7]]
        assert [row[rank + 1] for rank, row in enumerate(rows)] == ["N/A"] * 4
        cells = [float(cell) for row in rows for cell in row[1:] if cell != "N/A"]
        total = re.search(rf"^SUM {test} (\d+\.\d\d)$", section, re.MULTILINE)
        assert total
        assert float(total[1]) == pytest.approx(sum(cells), abs=0.1)
        assert min(cells) > 0


def test_a_rank_alone_needs_nobody(rack: Rack) -> None:
    assert Job(rack, 1, module("allreduce")).end()[0] == {0}


def test_a_size_that_does_not_fit_is_capped_and_said(rack: Rack) -> None:
    script = "import sys; from imex_dra.softimex import allreduce, programs; programs._available = lambda: 32768;"
    codes, output, _ = Job(rack, 2, ["-c", f"{script} sys.exit(allreduce.main(['-e', '1M']))"]).end()
    assert codes == {0}
    assert "# maxBytes is not 1048576: 8192 is each rank's share of the free memory" in output


def test_if_all_sizes_are_too_large_the_largest_that_fits_is_done(rack: Rack) -> None:
    script = "import sys; from imex_dra.softimex import allreduce, programs; programs._available = lambda: 32768;"
    codes, output, _ = Job(
        rack, 2, ["-c", f"{script} sys.exit(allreduce.main(['-b', '512M', '-e', '8G', '-g', '1']))"]
    ).end()
    assert codes == {0}
    rows = [line.split() for line in output.splitlines() if line and not line.startswith("#")]
    assert [row[0] for row in rows] == ["8192"]


@pytest.mark.parametrize(
    ("main", "words", "why"),
    [
        (allreduce.main, "-b 1M -e 1K", "nothing to do"),
        (allreduce.main, "-g 4", "invalid choice: 4"),
        (allreduce.main, "-b 6", "whole elements of 4 bytes"),
        (allreduce.main, "-f 1", "'1' is no whole number from 2 on"),
        (allreduce.main, "-n -1", "'-1' is no whole number from 0 on"),
        (bandwidth.main, "-i 0", "'0' is no whole number from 1 on"),
        (bandwidth.main, "-b x", "'x' is no whole number from 1 on"),
    ],
)
def test_what_would_do_nothing_or_something_else_is_refused(
    main: Callable[[Sequence[str]], int], words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert why in capsys.readouterr().err


def test_a_rank_that_is_killed_ends_the_others(rack: Rack) -> None:
    job = Job(rack, 3, module("allreduce", "-b", "1M", "-e", "1M", "-n", "100000"))
    assert job.ranks[0].stdout
    assert job.ranks[0].stdout.readline().startswith("# nThread")
    job.ranks[1].kill()
    codes, _, errors = job.end()
    assert codes == {1, -9}
    assert "rank 0: " in errors
    assert "rank 2: " in errors


def test_ranks_that_never_come_are_named(rack: Rack) -> None:
    script = "import sys; from imex_dra.softimex import allreduce, ranks; ranks.MEET_SECONDS = 3"
    codes, _, errors = Job(rack, 3, ["-c", f"{script}; sys.exit(allreduce.main())"], absent=1).end()
    assert codes == {1}
    assert re.search(r"rank 0: ranks \[(1, )?2\] did not come within 3 s", errors)


def test_a_rank_without_a_channel_says_so(rack: Rack, tmp_path: Path) -> None:
    environment = {**rack.nodes[0].env, "IMEX_CHANNEL_FILE": str(tmp_path / "none")}
    command = [sys.executable, *module("allreduce")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "CUDA_ERROR_NOT_PERMITTED (800)" in result.stderr


class TestPlace:
    def test_the_launcher_says_who_is_who(self) -> None:
        environment = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}
        assert place(environment) == Place(3, 8, 1, "a", 5)

    def test_nobody_says_anything(self) -> None:
        assert place({}) == Place(0, 1, 0, "", 29500)

    @pytest.mark.parametrize(
        "environment",
        [{"WORLD_SIZE": "2"}, {"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}],
    )
    def test_what_cannot_be_is_named(self, environment: dict[str, str]) -> None:
        with pytest.raises(JobError, match=r"MASTER_ADDR is not set|RANK is"):
            place(environment)


class Piece:
    """A rank's memory, for rings inside one process."""

    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(ring.DATA) + content

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._bytes[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data

    def view(self) -> memoryview:
        return memoryview(self._bytes)


@given(st.integers(1, 9), st.integers(0, 40), st.randoms())
def test_the_ring_sums_in_any_order_that_its_counters_allow(size: int, count: int, order: random.Random) -> None:
    """Ranks take their steps in a random order; who would have to wait is left standing."""
    pieces = [Piece(allreduce.pattern(rank, count)) for rank in range(size)]
    steps = [list(ring.schedule(rank, size)) for rank in range(size)]
    done = [0] * size
    while any(done[rank] < len(steps[rank]) for rank in range(size)):
        rank = order.choice([r for r in range(size) if done[r] < len(steps[r]) and done[r - 1] >= done[r]])
        step = steps[rank][done[rank]]
        begin, end = ring.bounds(step.chunk, size, count * 4, 4)
        theirs = pieces[rank - 1].read(ring.DATA + begin, end - begin)
        ours = pieces[rank].view()[ring.DATA :][begin:end]
        ours[:] = ring.add(theirs, ours) if step.add else theirs
        done[rank] += 1
    for piece in pieces:
        assert allreduce.count_wrong(piece.view()[ring.DATA :], allreduce.expected(size, count)) == 0


@given(st.integers(1, 80), st.integers(0, 5000))
def test_chunks_cover_everything_once(size: int, count: int) -> None:
    edges = [ring.bounds(chunk, size, count * 4, 4) for chunk in range(size)]
    assert edges[0][0] == 0
    assert edges[-1][1] == count * 4
    assert all(one[1] == two[0] for one, two in itertools.pairwise(edges))


def test_every_wrong_element_is_counted() -> None:
    good = allreduce.expected(4, 100)
    bad = bytearray(good)
    bad[0] ^= 1
    bad[396] ^= 1
    assert allreduce.count_wrong(memoryview(bad), good) == 2


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("1K", 1024), ("2m", 2 << 20), ("1G", 1 << 30)])
def test_sizes_are_written_as_in_nccl_tests(text: str, size: int) -> None:
    assert programs.parse_size(text) == size
