"""The lock on a cluster's name and number: one owner, and free when the owner has ended, however it ended."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.cluster.lock import CleanupProcess, ClusterLock, is_locked, lock_owner, wait_until_unlocked
from tests.waiting import until

TAKE_THE_LOCK = """
import sys, time
from imex_sandbox.cluster.lock import ClusterLock
lock = ClusterLock(sys.argv[1])
print(lock.number, flush=True)
time.sleep(600)
"""

START_CLEANUP_AND_DIE = """
import os, signal, sys
from pathlib import Path
from imex_sandbox.cluster.lock import CleanupProcess, ClusterLock
lock = ClusterLock(sys.argv[1])
CleanupProcess([Path(sys.argv[2])], lock)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def name() -> str:
    return f"lock-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def owner(name: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock."""
    child = subprocess.Popen([sys.executable, "-c", TAKE_THE_LOCK, name], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


@contextmanager
def locked(name: str) -> Iterator[ClusterLock]:
    lock = ClusterLock(name)
    try:
        yield lock
    finally:
        lock.release()


def test_a_name_can_be_locked_once(name: str) -> None:
    with (
        locked(name),
        pytest.raises(Misconfigured, match=f"cluster {name} is already running .*imex down --name {name}"),
    ):
        ClusterLock(name)
    with locked(name):
        assert is_locked(name)
    assert not is_locked(name)


def test_clusters_that_run_at_the_same_time_have_different_numbers(name: str) -> None:
    with ExitStack() as stack:
        numbers = [stack.enter_context(locked(f"{name}-{index}")).number for index in range(5)]
    assert len(set(numbers)) == 5


def test_the_error_names_the_pid_of_the_owner(name: str, owner: "subprocess.Popen[str]") -> None:
    assert lock_owner(name) == owner.pid
    with pytest.raises(Misconfigured, match=f"pid {owner.pid}"):
        ClusterLock(name)


def test_checking_the_lock_often_does_not_affect_it(name: str, owner: "subprocess.Popen[str]") -> None:
    assert all(is_locked(name) for _ in range(60))
    assert lock_owner(name) == owner.pid


def test_the_lock_of_a_killed_process_is_free(name: str, owner: "subprocess.Popen[str]") -> None:
    owner.kill()
    assert wait_until_unlocked(name, within=30)
    with locked(name):
        pass


def test_waiting_for_a_lock_times_out(name: str, owner: "subprocess.Popen[str]") -> None:
    assert not wait_until_unlocked(name, within=0.1)


def test_after_sigkill_the_name_is_locked_until_the_files_are_removed(name: str, tmp_path: Path) -> None:
    """Otherwise the cleanup would remove files of the next cluster of this name."""
    directory = tmp_path / "cluster"
    (directory / "deep").mkdir(parents=True)
    for number in range(2000):
        (directory / "deep" / str(number)).touch()
    subprocess.run([sys.executable, "-c", START_CLEANUP_AND_DIE, name, directory], check=False)
    assert wait_until_unlocked(name, within=60)
    assert not directory.exists()


def test_cleanup_removes_files_only_when_it_is_run(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with locked(name) as lock:
        cleanups = [CleanupProcess([directory], lock) for directory in (first, second)]
        cleanups[1].run()
        assert first.exists()
        assert not second.exists()
        cleanups[0].run()
        assert not first.exists()
    until(lambda: not is_locked(name))
