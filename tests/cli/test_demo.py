"""`imex demo` before there is a cluster: what it teaches, and what it says when it can't begin."""

import json
import os
import subprocess
import sys
from pathlib import Path

from imex_dra.sandbox.cluster.hold import Hold, holder
from imex_dra.sandbox.demo.program import NEEDED
from imex_dra.sandbox.demo.show import STEPS


def demo(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "imex_dra.cli", "demo", *words]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


GO = """#!/bin/sh
[ "$1" = env ] && exec echo go1.999.0
echo "go: there is no network here" >&2
exit 1
"""


def without_network(tmp_path: Path) -> dict[str, str]:
    """Nothing is built here, and a Go that can't fetch anything is found first."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    paths = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    return {"PATH": f"{go.parent}:/usr/bin:/bin", "KUBEBUILDER_ASSETS": "", **paths}


def test_its_help_names_every_step() -> None:
    text = demo("--help").stdout
    assert all(f"    {step}" in text for step in STEPS)


def test_what_can_not_be_built_is_said_in_the_report_and_in_one_sentence(tmp_path: Path) -> None:
    done = demo("--output=json", **without_network(tmp_path))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [step["name"] for step in report["steps"]] == ["programs"]
    assert (
        report["failure"] == "programs: go could not build go.etcd.io/etcd/server/v3: go: there is no network here"
    )
    assert "from source, this once" in done.stderr
    assert done.stderr.splitlines()[-1] == f"imex: {report['failure']}; logs: {report['logs']}"


def test_a_cluster_of_that_name_is_left_alone(tmp_path: Path) -> None:
    """The programs need not be there: what is on the PATH here only has to be found."""
    for name in NEEDED:
        (tmp_path / name).touch(mode=0o755)
    name = f"demo-{os.getpid()}"
    hold = Hold(name)
    try:
        done = demo(
            "--output=json", f"--name={name}", KUBEBUILDER_ASSETS=str(tmp_path), XDG_STATE_HOME=str(tmp_path)
        )
        assert holder(name) == os.getpid()
    finally:
        hold.release()
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [step["name"] for step in report["steps"]] == ["programs", "racks"]
    assert report["failure"] == (
        f"racks: a cluster {name} runs already (pid {os.getpid()}): `imex down --name {name}` ends it"
    )
