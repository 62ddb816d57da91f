"""What becomes of a cluster when one of its programs ends: by accident, or because somebody wanted it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.cluster.supervisor import Supervisor
from imex_dra.sandbox.process import Process


@pytest.fixture
def vital(tmp_path: Path) -> Iterator[Process]:
    yield from sleeping("kube-apiserver", tmp_path)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Process]:
    yield from sleeping("imex-controller", tmp_path)


def sleeping(name: str, logs: Path) -> Iterator[Process]:
    process = Process(name, ["sleep", "600"], log=logs / f"{name}.log")
    process.start()
    yield process
    process.stop(within=0)


def end(process: Process) -> None:
    process.kill()
    assert process.ended(within=60)


@pytest.fixture
def supervisor(vital: Process, kept: Process) -> Supervisor:
    made = Supervisor()
    made.need(vital)
    made.keep(kept.name, kept)
    return made


def test_while_everything_runs_there_is_nothing_to_tell(supervisor: Supervisor) -> None:
    assert (supervisor.failure(), supervisor.revive()) == ("", [])


def test_the_end_of_what_must_not_end_is_a_sentence(supervisor: Supervisor, vital: Process) -> None:
    end(vital)
    assert supervisor.failure() == (
        f"kube-apiserver ended unexpectedly (SIGKILL), and without it the cluster can't go on; see {vital.log}"
    )


def test_what_was_killed_on_purpose_is_no_accident(supervisor: Supervisor, vital: Process, kept: Process) -> None:
    supervisor.killed.update({vital.name, kept.name})
    end(vital)
    end(kept)
    assert (supervisor.failure(), supervisor.revive()) == ("", [])


def test_nothing_is_started_again_while_what_it_needs_is_down_on_purpose(
    supervisor: Supervisor, vital: Process, kept: Process
) -> None:
    supervisor.killed.add(vital.name)
    end(vital)
    end(kept)
    assert supervisor.revive() == []
    vital.start()
    supervisor.killed.discard(vital.name)
    assert supervisor.revive() == [f"imex-controller ended (SIGKILL) and is started again in 1 s; see {kept.log}"]


async def answer() -> int:
    return 42


async def never() -> None:
    await asyncio.Event().wait()


def test_whatever_is_waited_for_comes(supervisor: Supervisor) -> None:
    assert supervisor.wait(answer()) == 42


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_cluster_that_can_not_go_on(supervisor: Supervisor, vital: Process) -> None:
    end(vital)
    with pytest.raises(Unavailable, match="kube-apiserver ended unexpectedly"):
        supervisor.wait(never())
