"""Ranks that are forked: what they have, how they end, and that they do not outlive their parent."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imex_sandbox.mpi import rankprograms
from imex_sandbox.mpi.rankprograms import ForkedProcess, Invocation
from imex_sandbox.softimex import allreduce, bandwidth
from tests.waiting import until


def output(process: ForkedProcess) -> tuple[str, str]:
    with os.fdopen(process.stdout) as out, os.fdopen(process.stderr) as errors:
        return out.read(), errors.read()


@pytest.mark.parametrize(
    ("argv", "main", "arguments"),
    [
        (["/run/imex/bin/imex", "allreduce", "-b", "1K"], allreduce.main, ["-b", "1K"]),
        (["/run/imex/bin/imex", "bandwidth"], bandwidth.main, []),
        (["/run/imex/bin/all_reduce_perf", "-g", "1"], allreduce.main, ["-g", "1"]),
        (["/run/imex/bin/nvbandwidth", "-t", "x"], bandwidth.main, ["-t", "x"]),
    ],
)
def test_programs_of_the_sandbox_are_forked(
    argv: list[str], main: Callable[[Sequence[str]], int], arguments: list[str]
) -> None:
    assert rankprograms.find(argv) == Invocation(main, arguments)


@pytest.mark.parametrize(
    "argv", [["/run/imex/bin/imex", "status"], ["/run/imex/bin/imex"], ["/opt/nccl/all_reduce_perf"], ["/bin/env"]]
)
def test_other_programs_are_not(argv: list[str]) -> None:
    assert rankprograms.find(argv) is None


def test_a_rank_has_its_own_environment_group_and_output_and_no_other_descriptor() -> None:
    def main(arguments: Sequence[str]) -> int:
        descriptors = sorted(int(link.name) for link in Path("/proc/self/fd").iterdir())
        sys.stdout.write(f"{arguments} {dict(os.environ)} {os.getpgid(0) == os.getpid()} {descriptors[:3]}")
        # The fourth is that of the directory which is read here.
        return 3 if len(descriptors) == 4 else 4

    process = ForkedProcess(Invocation(main, ["a"]), {"RANK": "7"})
    assert output(process) == ("['a'] {'RANK': '7'} True [0, 1, 2]", "")
    assert process.wait() == 3


@pytest.mark.parametrize(
    ("error", "code", "text"), [(SystemExit(5), 5, ""), (SystemExit("bad"), 1, ""), (ValueError("bad"), 1, "bad")]
)
def test_a_rank_that_raises_ends_with_a_code(error: BaseException, code: int, text: str) -> None:
    def main(arguments: Sequence[str]) -> int:
        raise error

    process = ForkedProcess(Invocation(main, []), {})
    assert text in output(process)[1]
    assert process.wait() == code


def test_a_rank_is_killed_with_its_parent(tmp_path: Path) -> None:
    found = tmp_path / "pid"

    def rank(arguments: Sequence[str]) -> int:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(found)
        signal.pause()
        return 0

    def server(arguments: Sequence[str]) -> int:
        ForkedProcess(Invocation(rank, []), {}).wait()
        return 0

    parent = ForkedProcess(Invocation(server, []), {})
    until(found.exists)
    pid = int(found.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL
    until(lambda: _is_gone(pid))


def _is_gone(pid: int) -> bool:
    """Or a zombie: this machine may have no process that reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
