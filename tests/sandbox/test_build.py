import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import binaries, build, toolchain
from tests.sandbox.waiting import eventually

GO = r"""#!/bin/sh
echo "$@" >> "$GO_CALLS"
case "$1" in
env) echo "${GO_VERSION:-go1.26.6}" ;;
list)
  if [ "$2" = -m ]; then
    mkdir -p "$GO_CALLS.module/deploy/v2beta1"
    echo "kind: CustomResourceDefinition" > "$GO_CALLS.module/deploy/v2beta1/mpi-operator.yaml"
    echo "$GO_CALLS.module"
  else echo "go: downloading k8s.io/kubernetes" >&2; echo fmt; echo k8s.io/kubernetes; fi ;;
build)
  eval "$GO_BUILD"
  while [ "$1" != -o ]; do shift; done
  printf '#!/bin/sh\n' > "$2"; chmod +x "$2" ;;
esac
"""


class Machine:
    """An empty cache and a Go that only pretends."""

    def __init__(self, directory: Path) -> None:
        self.calls = directory / "calls"
        self.path = directory / "path"
        self.path.mkdir()
        go = self.path / "go"
        go.write_text(GO)
        go.chmod(0o755)
        self.environment = {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "XDG_CACHE_HOME": str(directory / "cache"),
            "GO_CALLS": str(self.calls),
        }

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "imex_dra.sandbox.kubernetes.build"],
            env={**self.environment, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, **environment: str) -> tuple[int, str]:
        with self.start(**environment) as process:
            _, said = process.communicate(timeout=120)
        return process.returncode, said

    def began(self) -> bool:
        return self.calls.exists() and "build -v" in self.calls.read_text()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return found


def left_overs() -> list[Path]:
    return list(binaries.cache_root().rglob(".build-*"))


def test_everything_missing_is_built_and_nothing_else_left(machine: Machine) -> None:
    assert machine.build()[0] == 0
    assert binaries.missing(binaries.BUILT) == []
    assert left_overs() == []


def test_what_is_there_needs_no_go_at_all(machine: Machine) -> None:
    machine.build()
    machine.calls.unlink()
    assert machine.build(PATH="/nowhere") == (0, "")
    assert not machine.calls.exists()


def test_only_what_is_missing_is_built(machine: Machine) -> None:
    machine.build()
    (binaries.cache("kubelet") / "kubelet").unlink()
    machine.calls.unlink()
    machine.build()
    assert [line.split()[-1] for line in machine.calls.read_text().splitlines() if line.startswith("build")] == [
        "k8s.io/kubernetes/cmd/kubelet"
    ]


def test_the_mpi_operators_manifest_lies_beside_it_before_it_appears(machine: Machine) -> None:
    machine.build(GO_BUILD="case $* in *mpi-operator) exit 2;; esac")
    assert binaries.missing(binaries.BUILT) == ["mpi-operator"]
    machine.build()
    manifest = binaries.find("mpi-operator").with_suffix(".yaml")
    assert "CustomResourceDefinition" in manifest.read_text()


def test_a_failure_ends_with_gos_own_words(machine: Machine) -> None:
    code, said = machine.build(GO_BUILD="echo 'undefined: x' >&2; exit 2")
    assert code == 1
    assert "go could not build" in said
    assert "undefined: x" in said
    assert left_overs() == []


def test_a_killed_build_leaves_nothing_half_and_the_next_one_goes_on(machine: Machine) -> None:
    with machine.start(GO_BUILD="exec sleep 600") as process:
        assert eventually(machine.began)
        process.kill()
    assert len(binaries.missing(binaries.BUILT)) == len(binaries.BUILT)
    assert machine.build()[0] == 0
    assert left_overs() == []


def test_an_interrupt_stops_it_cleanly(machine: Machine) -> None:
    with machine.start(GO_BUILD="exec sleep 600") as process:
        assert eventually(machine.began)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped" in said
    assert left_overs() == []


def test_a_second_build_waits_for_the_first(machine: Machine) -> None:
    gate = machine.path / "gate"
    with machine.start(GO_BUILD=f"while [ ! -e {gate} ]; do sleep 0.05; done") as first:
        assert eventually(machine.began)
        with machine.start() as second:
            assert second.stderr
            assert "another build is at work" in second.stderr.readline()
            gate.touch()
            assert second.wait(30) == 0
            assert first.wait(30) == 0
    builds = [line for line in machine.calls.read_text().splitlines() if line.startswith("build")]
    assert len(builds) == len(binaries.BUILT)


@pytest.mark.usefixtures("machine")
def test_without_sources_it_says_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(Misconfigured, match=r"only be built in a source checkout.*KUBEBUILDER_ASSETS"):
        build.build()


@pytest.mark.usefixtures("machine")
def test_an_old_go_without_another_is_a_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_VERSION", "go1.19")
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    with pytest.raises(Misconfigured, match=r"no Go on the PATH is new enough, and installing .*go\.txt failed"):
        toolchain.find_go(tmp_path, tmp_path / "go.txt")


def test_a_newer_go_of_the_machine_is_taken(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    assert toolchain.find_go(tmp_path, tmp_path / "go.txt") == machine.path / "go"


def test_no_environment_of_the_caller_bends_the_build() -> None:
    assert toolchain.environment()["GOTOOLCHAIN"] == "local"
    assert toolchain.environment()["PATH"] == os.environ["PATH"]
