"""The demo: it succeeds, it fails, and it is stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_sandbox.cluster.lock import lock_owner
from imex_sandbox.demo.scenario import STEPS
from tests.paths import ROOT

pytestmark = [pytest.mark.racks, pytest.mark.timeout(1200)]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def name() -> str:
    return f"demo-{os.getpid()}"


@pytest.fixture
def start(name: str, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(module: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", module, *arguments],
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
            cwd=ROOT,
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
    assert lock_owner(name) is None


def step(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in report["steps"] if one["name"] == name)
    return found


def wait_for_line(demo: "subprocess.Popen[str]", text: str) -> None:
    assert demo.stderr
    while text not in (line := demo.stderr.readline()):
        assert line, f"the demo ended before it printed {text}"


def test_all_checks_pass_on_two_racks_of_two_nodes(name: str, start: Start) -> None:
    """`make test` runs it, with some of tests/sandbox/failures, on the embedded control plane."""
    demo = start("tests.sandbox.demo.small", name, "2", "300")
    out, progress = demo.communicate(timeout=900)
    report = json.loads(out)
    assert (demo.returncode, report["failure"]) == (0, None), progress
    assert [one["name"] for one in report["steps"]] == ["programs", *STEPS]


@pytest.mark.slow
def test_all_checks_pass_on_two_racks_of_18_nodes(name: str, start: Start) -> None:
    demo = start("imex_dra.cli", "demo", "--output=json", f"--name={name}")
    out, progress = demo.communicate(timeout=1100)
    report = json.loads(out)
    assert (demo.returncode, report["failure"]) == (0, None), progress
    assert report["ok"]
    assert [one["name"] for one in report["steps"]] == ["programs", *STEPS]
    workers = [claim for claim in report["claims"] if claim["pods"][0].startswith("allreduce-worker-")]
    assert len(workers) == 18
    assert {claim["state"] for claim in workers} == {"allocated,reserved"}
    assert len({(claim["partition"], claim["channel"]) for claim in workers}) == 1
    refusal = step(report, "isolation")["checks"][-1]["found"]
    assert refusal.startswith("CUDA_ERROR_NOT_PERMITTED (800): ")
    assert "isolation: " in progress


@pytest.mark.slow
def test_a_job_that_cannot_run_is_reported_in_one_sentence_with_exit_code_1(
    name: str, start: Start, tmp_path: Path
) -> None:
    demo = start("tests.sandbox.demo.small", name, "3", "5")
    out, progress = demo.communicate(timeout=600)
    report = json.loads(out)
    assert (demo.returncode, report["ok"]) == (1, False), progress
    assert report["failure"].startswith("MPIJob: not Succeeded within 5 s: ")
    assert progress.splitlines()[-1] == f"imex: {report['failure']}; logs: {report['logs']}"
    assert [one["name"] for one in report["steps"]][-2:] == ["MPIJob", "cleanup"]
    assert all(check["ok"] for check in step(report, "cleanup")["checks"])
    assert Path(report["logs"]).is_relative_to(tmp_path)
    assert "mpijob.kubeflow.org/allreduce" in (Path(report["logs"]) / "cluster.txt").read_text()
    assert (Path(report["logs"]) / "imex-up.log").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_and_cleans_up(name: str, start: Start) -> None:
    demo = start("tests.sandbox.demo.small", name, "2", "300")
    wait_for_line(demo, "driver ...")
    demo.send_signal(signal.SIGINT)
    out, progress = demo.communicate(timeout=300)
    assert (demo.returncode, out) == (130, "")
    assert progress.splitlines()[-1] == "stopped; nothing is left but logs"
    assert lock_owner(name) is None
