"""`imex demo` without a cluster: its help, and its errors when it cannot start."""

import json
import os
import subprocess
import sys
from pathlib import Path

from imex_sandbox.cluster.lock import ClusterLock, lock_owner
from imex_sandbox.demo.demo import PROGRAMS
from imex_sandbox.demo.scenario import STEPS


def demo(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "imex_dra.cli", "demo", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


GO = """#!/bin/sh
[ "$1" = env ] && exec echo go1.999.0
echo "go: there is no network here" >&2
exit 1
"""


def without_network(tmp_path: Path) -> dict[str, str]:
    """An environment with nothing built, and with a Go that cannot fetch anything."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    paths = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    return {"PATH": f"{go.parent}:/usr/bin:/bin", "KUBEBUILDER_ASSETS": "", "IMEX_KUBERNETES": "", **paths}


def test_the_help_lists_every_step() -> None:
    text = demo("--help").stdout
    assert all(f"    {step}  " in text for step in (PROGRAMS, *STEPS))


def test_a_failed_build_is_in_the_report_and_in_the_last_line(tmp_path: Path) -> None:
    done = demo("--output=json", "--control-plane=kubernetes", **without_network(tmp_path))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [step["name"] for step in report["steps"]] == ["programs"]
    assert report["failure"] == (
        "programs: go could not build imex-dra.io/sandbox/kubernetes: go: there is no network here"
    )
    assert "from source. This takes minutes, but only once" in done.stderr
    assert done.stderr.splitlines()[-1] == f"imex: {report['failure']}; logs: {report['logs']}"


def test_a_running_cluster_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    name = f"demo-{os.getpid()}"
    lock = ClusterLock(name)
    try:
        done = demo("--output=json", f"--name={name}", XDG_STATE_HOME=str(tmp_path))
        assert lock_owner(name) == os.getpid()
    finally:
        lock.release()
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [step["name"] for step in report["steps"]] == ["programs", "racks"]
    assert report["failure"].startswith(f"racks: cluster {name} is already running (pid {os.getpid()}): stop it")
