"""The demo from end to end on a real control plane: as it should be, with something wrong, and stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.sandbox.cluster.hold import holder
from imex_dra.sandbox.demo.show import STEPS
from imex_dra.sandbox.kubernetes import binaries

pytestmark = [
    pytest.mark.kube,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        bool(binaries.missing(["mpi-operator"])),
        reason="no MPI Operator here (mpi-operator not found): make kube builds it",
    ),
]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def name() -> str:
    return f"demo-{os.getpid()}"


@pytest.fixture
def start(name: str, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(module: str, *words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", module, *words],
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=120)
    assert holder(name) is None


def step(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in report["steps"] if one["name"] == name)
    return found


def until_told(demo: "subprocess.Popen[str]", words: str) -> None:
    assert demo.stderr
    while words not in (line := demo.stderr.readline()):
        assert line, f"it ended before it said {words}"


def test_everything_is_as_it_should_be_on_two_racks_of_eighteen(name: str, start: Start) -> None:
    demo = start("imex_dra.cli", "demo", "--output=json", f"--name={name}")
    out, told = demo.communicate(timeout=1100)
    report = json.loads(out)
    assert (demo.returncode, report["failure"]) == (0, None), told
    assert report["ok"]
    assert [one["name"] for one in report["steps"]] == ["programs", *STEPS]
    workers = [claim for claim in report["claims"] if claim["pods"][0].startswith("allreduce-worker-")]
    assert len(workers) == 18
    assert {claim["state"] for claim in workers} == {"allocated,reserved"}
    assert len({(claim["partition"], claim["channel"]) for claim in workers}) == 1
    refusal = step(report, "stranger")["checks"][-1]["found"]
    assert refusal.startswith("CUDA_ERROR_NOT_PERMITTED (800): ")
    assert "stranger: " in told


def test_a_job_that_can_not_run_is_said_in_one_sentence_with_exit_code_1(
    name: str, start: Start, tmp_path: Path
) -> None:
    demo = start("tests.demo.small", name, "3", "5")
    out, told = demo.communicate(timeout=600)
    report = json.loads(out)
    assert (demo.returncode, report["ok"]) == (1, False), told
    assert report["failure"].startswith("MPIJob: not Succeeded within 5 s: ")
    assert told.splitlines()[-1] == f"imex: {report['failure']}; logs: {report['logs']}"
    assert [one["name"] for one in report["steps"]][-2:] == ["MPIJob", "clean-up"]
    assert all(check["ok"] for check in step(report, "clean-up")["checks"])
    assert Path(report["logs"]).is_relative_to(tmp_path)
    assert "mpijob.kubeflow.org/allreduce" in (Path(report["logs"]) / "cluster.txt").read_text()
    assert (Path(report["logs"]) / "imex-up.log").exists()


def test_control_c_cleans_up(name: str, start: Start) -> None:
    demo = start("tests.demo.small", name, "2", "300")
    until_told(demo, "driver ...")
    demo.send_signal(signal.SIGINT)
    out, told = demo.communicate(timeout=300)
    assert (demo.returncode, out) == (130, "")
    assert told.splitlines()[-1] == "stopped; nothing is left but logs"
    assert holder(name) is None
