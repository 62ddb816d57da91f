"""`imex bandwidth` and `imex allreduce`, as ranks of a job on several nodes."""

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex import allreduce, bandwidth, processgroup, ring
from imex_sandbox.softimex.errors import JobError
from imex_sandbox.softimex.processgroup import RankInfo, read_rank
from imex_sandbox.softimex.ring import DATA_OFFSET, Ring
from tests.sandbox.softimex.rack import DIES_WITH_US, Rack
from tests.sandbox.softimex.workload import CHANNELS, create_channels

pytestmark = pytest.mark.timeout(300)

WRONG_SUM = """
import sys
from imex_sandbox.softimex import allreduce, processgroup, ring

plan = allreduce.Plan(1024, 1024, 2, 1, 0)
wrong = lambda left, own: bytes([left[0] ^ 1]) + ring.add(left, own)[1:]
sys.exit(processgroup.run(lambda channel, group: allreduce.reduce_all(channel, group, plan, wrong)))
"""


@pytest.mark.parametrize(
    ("program", "words", "ignored"),
    [
        (allreduce, "-b 4K -e 4K -c 0 -R 2", "-c 0 -R 2"),
        (bandwidth, f"-t {bandwidth.READ} {bandwidth.WRITE} --verbose --json", "--verbose --json"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_flags_that_only_the_real_program_has_are_ignored_and_rank_0_says_so(
    program: ModuleType,
    words: str,
    ignored: str,
    rank: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("RANK", str(rank)), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processgroup, "run", lambda work: 0)
    assert program.main(words.split()) == 0
    said = f"ignored, because soft IMEX has no such option: {ignored}\n"
    assert capsys.readouterr().err.endswith(said) is (rank == 0)


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    rack = Rack(3)
    for node in rack.nodes:
        create_channels(node, 3)
    rack.start()
    yield rack
    rack.close()


class Job:
    """Ranks distributed over the nodes in turn, with the variables of torchrun or Open MPI."""

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

    def wait(self) -> tuple[set[int], str, str]:
        """Wait for all ranks; returns their exit codes, the output of rank 0, and stderr of all ranks."""
        outputs = [process.communicate(timeout=100) for process in self.ranks]
        codes = {process.returncode for process in self.ranks}
        assert not any(output for output, _ in outputs[1:])
        return codes, outputs[0][0], "".join(errors for _, errors in outputs)


def module(name: str, *arguments: str) -> list[str]:
    return ["-c", f"import sys; from imex_sandbox.softimex import {name}; sys.exit({name}.main())", *arguments]


def test_allreduce_verifies_all_sums_and_prints_the_table_of_nccl_tests(rack: Rack) -> None:
    codes, output, errors = Job(rack, 5, module("allreduce", "-b", "4", "-e", "64K", "-f", "16")).wait()
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


def test_a_wrong_element_fails_every_rank(rack: Rack) -> None:
    codes, output, errors = Job(rack, 3, ["-c", WRONG_SUM]).wait()
    assert (codes, errors) == ({1}, "")
    assert re.search(r"# Out of bounds values : [1-9]\d* FAILED", output)


def test_bandwidth_prints_the_matrices_of_nvbandwidth(rack: Rack) -> None:
    codes, output, errors = Job(rack, 4, module("bandwidth", "-b", "1"), mpi=True).wait()
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


def test_a_single_rank_runs_without_a_launcher(rack: Rack) -> None:
    assert Job(rack, 1, module("allreduce")).wait()[0] == {0}


def test_a_size_that_does_not_fit_is_reduced_and_reported(rack: Rack) -> None:
    script = (
        "import sys; from imex_sandbox.softimex import allreduce, processgroup;"
        " processgroup._available_memory = lambda: 32768;"
    )
    codes, output, _ = Job(rack, 2, ["-c", f"{script} sys.exit(allreduce.main(['-e', '1M']))"]).wait()
    assert codes == {0}
    assert "# maxBytes is reduced from 1048576 to 8192, each rank's share of the free memory" in output


def test_if_all_sizes_are_too_large_the_largest_that_fits_is_used(rack: Rack) -> None:
    script = (
        "import sys; from imex_sandbox.softimex import allreduce, processgroup;"
        " processgroup._available_memory = lambda: 32768;"
    )
    codes, output, _ = Job(
        rack, 2, ["-c", f"{script} sys.exit(allreduce.main(['-b', '512M', '-e', '8G', '-g', '1']))"]
    ).wait()
    assert codes == {0}
    rows = [line.split() for line in output.splitlines() if line and not line.startswith("#")]
    assert [row[0] for row in rows] == ["8192"]


@pytest.mark.parametrize(
    ("main", "arguments", "error"),
    [
        (allreduce.main, "-b 1M -e 1K", "--minbytes is larger than --maxbytes"),
        (allreduce.main, "-g 4", "invalid choice: 4"),
        (allreduce.main, "-b 6", "not a multiple of the element size"),
        (allreduce.main, "-f 1", "'1' is not an integer of at least 2"),
        (allreduce.main, "-n -1", "'-1' is not an integer of at least 0"),
        (bandwidth.main, "-i 0", "'0' is not an integer of at least 1"),
        (bandwidth.main, "-b x", "'x' is not an integer of at least 1"),
    ],
)
def test_invalid_options_are_refused(
    main: Callable[[Sequence[str]], int], arguments: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert error in capsys.readouterr().err


def test_a_killed_rank_ends_the_others(rack: Rack) -> None:
    job = Job(rack, 3, module("allreduce", "-b", "1M", "-e", "1M", "-n", "100000"))
    assert job.ranks[0].stdout
    assert job.ranks[0].stdout.readline().startswith("# nThread")
    job.ranks[1].kill()
    codes, _, errors = job.wait()
    assert codes == {1, -9}
    assert "rank 0: " in errors
    assert "rank 2: " in errors


def test_missing_ranks_are_named(rack: Rack) -> None:
    script = "import sys; from imex_sandbox.softimex import allreduce, processgroup"
    script += "; processgroup.RENDEZVOUS_SECONDS = 3"
    codes, _, errors = Job(rack, 3, ["-c", f"{script}; sys.exit(allreduce.main())"], absent=1).wait()
    assert codes == {1}
    assert re.search(r"rank 0: ranks \[(1, )?2\] did not join within 3 s", errors)


def test_a_rank_without_a_channel_is_refused(rack: Rack, tmp_path: Path) -> None:
    environment = {**rack.nodes[0].env, "IMEX_CHANNEL_FILE": str(tmp_path / "none")}
    command = [sys.executable, *module("allreduce")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "CUDA_ERROR_NOT_PERMITTED (800)" in result.stderr


class TestReadRank:
    def test_the_launcher_sets_the_rank(self) -> None:
        environment = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}
        assert read_rank(environment) == RankInfo(3, 8, 1, "a", 5)

    def test_without_a_launcher_the_rank_is_the_only_one(self) -> None:
        assert read_rank({}) == RankInfo(0, 1, 0, "", 29500)

    @pytest.mark.parametrize(
        "environment",
        [{"WORLD_SIZE": "2"}, {"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}],
    )
    def test_invalid_variables_are_named(self, environment: dict[str, str]) -> None:
        with pytest.raises(JobError, match=r"MASTER_ADDR is not set|RANK is"):
            read_rank(environment)


class FakeMemory:
    """A rank's memory, for several rings in one process."""

    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(DATA_OFFSET) + content

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._bytes[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data

    def view(self) -> memoryview:
        return memoryview(self._bytes)


@given(st.integers(1, 9), st.integers(0, 40), st.randoms())
def test_the_ring_sums_correctly_in_any_order_that_its_counters_allow(
    size: int, count: int, rng: random.Random
) -> None:
    """Ranks take their steps in a random order, except those that have to wait for their left neighbor."""
    memories = [FakeMemory(allreduce.pattern(rank, count)) for rank in range(size)]
    rings = [Ring(rank, size, memories[rank], memories[rank - 1]) for rank in range(size)]
    steps = [list(ring.schedule(rank, size)) for rank in range(size)]
    for each in rings:
        each.publish()
    while pending := [rank for rank in range(size) if steps[rank] and rings[rank].ready()]:
        rank = rng.choice(pending)
        rings[rank].apply(steps[rank].pop(0), count * 4, 4)
        rings[rank].publish()
    assert not any(steps)
    for memory in memories:
        actual = memory.view()[DATA_OFFSET:]
        assert allreduce.count_wrong(actual, allreduce.expected_sum(size, count)) == 0


@given(st.integers(1, 80), st.integers(0, 5000))
def test_chunks_cover_all_elements_exactly_once(size: int, count: int) -> None:
    edges = [ring.bounds(chunk, size, count * 4, 4) for chunk in range(size)]
    assert edges[0][0] == 0
    assert edges[-1][1] == count * 4
    assert all(one[1] == two[0] for one, two in itertools.pairwise(edges))


def test_every_wrong_element_is_counted() -> None:
    correct = allreduce.expected_sum(4, 100)
    wrong = bytearray(correct)
    wrong[0] ^= 1
    wrong[396] ^= 1
    assert allreduce.count_wrong(memoryview(wrong), correct) == 2


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("1K", 1024), ("2m", 2 << 20), ("1G", 1 << 30)])
def test_sizes_have_the_suffixes_of_nccl_tests(text: str, size: int) -> None:
    assert allreduce.parse_size(text) == size
