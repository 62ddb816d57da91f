import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured, Unavailable
from imex_dra.sandbox.process import Process
from tests.sandbox.waiting import eventually

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
ORPHAN = """
import sys, time
from pathlib import Path
from imex_dra.sandbox.process import Process
child = Process("sleep", ["sleep", "600"], log=Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_logs_and_stops_on_request(tmp_path: Path) -> None:
    process = Process("greeter", ["sh", "-c", "echo hello; exec sleep 600"], log=tmp_path / "log")
    process.start()
    process.until(lambda: "hello" in process.log.read_text(), within=60)
    process.stop()
    assert not process.running


def test_one_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    process = Process("stubborn", ["sh", "-c", STUBBORN], log=tmp_path / "log")
    process.start()
    process.until(lambda: "ready" in process.log.read_text(), within=60)
    process.stop(within=0.2)
    assert not process.running


def test_a_death_while_it_is_waited_for_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process("failure", ["sh", "-c", "echo no such flag >&2; exit 3"], log=tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match=r"failure ended \(exit code 3\)[^$]*no such flag"):
        process.until(lambda: False, within=60)


def test_a_missed_deadline_names_it(tmp_path: Path) -> None:
    process = Process("slow", ["sleep", "600"], log=tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match=r"slow was not ready within 0\.1 s"):
        process.until(lambda: False, within=0.1)
    process.stop()


def test_it_starts_again_after_a_kill(tmp_path: Path) -> None:
    process = Process("phoenix", ["sh", "-c", "echo up; exec sleep 600"], log=tmp_path / "log")
    for lives in (1, 2):
        process.start()
        process.until(lambda lives=lives: process.log.read_text().count("up") == lives, within=60)  # type: ignore[misc]
        process.kill()
        process.ended(within=60)
        assert not process.running


def test_it_dies_with_a_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert alive(child)
        os.kill(parent.pid, signal.SIGKILL)
    assert eventually(lambda: not alive(child))


def test_another_thread_may_not_start_it(tmp_path: Path) -> None:
    caught: list[Misconfigured] = []

    def start() -> None:
        try:
            Process("sleep", ["sleep", "600"], log=tmp_path / "log").start()
        except Misconfigured as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])
