"""Names and numbers of clusters: one holder each, and free when the holder is gone, however it went."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.cluster.hold import Hold, free, holder, is_held
from imex_dra.sandbox.cluster.janitor import Janitor
from tests.sandbox.waiting import eventually

HOLDER = """
import sys, time
from imex_dra.sandbox.cluster.hold import Hold
hold = Hold(sys.argv[1])
print(hold.number, flush=True)
time.sleep(600)
"""


@pytest.fixture
def name() -> str:
    return f"hold-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def stranger(name: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the name."""
    child = subprocess.Popen([sys.executable, "-c", HOLDER, name], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


def taken(name: str) -> Any:
    class _Taken(Hold):
        def close(self) -> None:
            self.release()

    return closing(_Taken(name))


def test_a_name_is_held_once(name: str) -> None:
    with (
        taken(name),
        pytest.raises(Misconfigured, match=f"a cluster {name} runs already .*imex down --name {name}"),
    ):
        Hold(name)
    with taken(name):
        assert is_held(name)
    assert not is_held(name)


def test_numbers_differ_while_both_are_held(name: str) -> None:
    with ExitStack() as stack:
        numbers = [stack.enter_context(taken(f"{name}-{index}")).number for index in range(5)]
    assert len(set(numbers)) == 5


def test_the_kernel_knows_the_holder(name: str, stranger: "subprocess.Popen[str]") -> None:
    assert holder(name) == stranger.pid
    with pytest.raises(Misconfigured, match=f"pid {stranger.pid}"):
        Hold(name)


def test_looking_often_changes_nothing(name: str, stranger: "subprocess.Popen[str]") -> None:
    assert all(is_held(name) for _ in range(60))
    assert holder(name) == stranger.pid


def test_a_killed_holder_holds_nothing(name: str, stranger: "subprocess.Popen[str]") -> None:
    stranger.kill()
    assert free(name, within=30)
    with taken(name):
        pass


def test_who_waits_in_vain_is_told(name: str, stranger: "subprocess.Popen[str]") -> None:
    assert not free(name, within=0.1)


def test_the_janitor_cleans_up_after_a_killed_holder_and_lets_nobody_in_before(name: str, tmp_path: Any) -> None:
    """The order is what matters: whoever gets the name finds an empty place."""
    place = tmp_path / "place"
    (place / "deep").mkdir(parents=True)
    for number in range(2000):
        (place / "deep" / str(number)).touch()
    code = f"""
import os, signal, time
from pathlib import Path
from imex_dra.sandbox.cluster.hold import Hold
from imex_dra.sandbox.cluster.janitor import Janitor
hold = Hold({name!r})
Janitor([Path({str(place)!r})], hold.descriptors)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert free(name, within=60)
    assert not place.exists()


def test_the_janitor_sweeps_when_asked_and_not_before(name: str, tmp_path: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with taken(name) as hold:
        janitors = [Janitor([place], hold.descriptors) for place in (first, second)]
        janitors[1].sweep()
        assert first.exists()
        assert not second.exists()
        janitors[0].sweep()
        assert not first.exists()
    assert eventually(lambda: not is_held(name))
