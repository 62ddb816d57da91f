import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured, Unavailable
from imex_sandbox.process import Process
from tests.waiting import until

IGNORES_SIGTERM = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
PARENT = """
import sys, time
from pathlib import Path
from imex_sandbox.process import Process
child = Process("sleep", ["sleep", "600"], log=Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_writes_to_its_log_and_stops_on_request(tmp_path: Path) -> None:
    process = Process("hello", ["sh", "-c", "echo hello; exec sleep 600"], log=tmp_path / "log")
    process.start()
    process.until(lambda: "hello" in process.log.read_text(), within=60)
    process.stop()
    assert not process.running


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = Process("stubborn", ["sh", "-c", IGNORES_SIGTERM], log=tmp_path / "log")
    process.start()
    process.until(lambda: "ready" in process.log.read_text(), within=60)
    process.stop(within=0.2)
    assert not process.running


def test_an_exit_before_readiness_reports_the_exit_status_and_the_end_of_the_log(tmp_path: Path) -> None:
    process = Process("failure", ["sh", "-c", "echo no such flag >&2; exit 3"], log=tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match=r"failure ended \(exit code 3\)[^$]*no such flag"):
        process.until(lambda: False, within=60)


def test_a_readiness_timeout_names_the_process(tmp_path: Path) -> None:
    process = Process("slow", ["sleep", "600"], log=tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match=r"slow was not ready within 0\.1 s"):
        process.until(lambda: False, within=0.1)
    process.stop()


def test_a_killed_process_can_be_started_again(tmp_path: Path) -> None:
    process = Process("restarted", ["sh", "-c", "echo up; exec sleep 600"], log=tmp_path / "log")
    for runs in (1, 2):
        process.start()
        process.until(lambda runs=runs: process.log.read_text().count("up") == runs, within=60)  # type: ignore[misc]
        process.kill()
        assert process.wait(within=60)
        assert process.exit_status == "SIGKILL"


def test_a_process_dies_with_its_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert is_running(child)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not is_running(child))


def test_a_process_cannot_be_started_from_another_thread(tmp_path: Path) -> None:
    errors: list[Misconfigured] = []

    def start() -> None:
        try:
            Process("sleep", ["sleep", "600"], log=tmp_path / "log").start()
        except Misconfigured as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
