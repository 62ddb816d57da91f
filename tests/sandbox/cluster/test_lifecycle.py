"""How clusters start and stop: side by side, in the foreground and detached. Only logs are left of them.

Mostly with the embedded control plane, because a real one takes most of the time of such a test.
"""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from imex_sandbox.cluster.handle import Cluster, is_ready, running
from imex_sandbox.cluster.lock import is_locked, lock_owner, wait_until_unlocked
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.cluster.settings import EMBEDDED, KUBERNETES
from imex_sandbox.racks import of_racks
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMEX = (sys.executable, "-m", "imex_dra.cli")
TWO_NODES = """
apiVersion: sandbox.imex-dra.io/v1
kind: Cluster
racks: [{name: a, profile: gb200-nvl72, nodes: 2}]
"""
START_TIMEOUT = 180.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(TWO_NODES)
    return path


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a cluster with its state in the test's directory. The cluster is stopped after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("IMEX_CONTROL_PLANE", raising=False)
    name = f"life-{uuid.uuid4().hex[:6]}"
    yield name
    if (pid := lock_owner(name)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert wait_until_unlocked(name, within=60)


def imex(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*IMEX, *arguments], capture_output=True, text=True, timeout=300, check=False)


def started(file: Path, name: str, *flags: str) -> "subprocess.Popen[str]":
    """In the foreground, as from a shell."""
    argv = [*IMEX, "up", str(file), f"--name={name}", *flags]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: is_ready(name) or child.poll() is not None, within=START_TIMEOUT)
        assert child.poll() is None
    except AssertionError:
        child.kill()
        pytest.fail(f"the cluster did not start: {child.communicate()}")
    return child


def processes_with(*words: str) -> list[str]:
    """The command lines of processes that have one of these words in their command line or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if any(word.encode() in text for word in words) and process.name != str(os.getpid()):
                found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
    return found


def soft_daemons(paths: ClusterPaths) -> list[str]:
    """Without their supervisors, whose command lines contain that of the daemon."""
    lines = processes_with(str(paths.run))
    return [line for line in lines if "imex_sandbox.softimex.daemon" in line and "supervisor.sh" not in line]


def pid_in(directory: Path, program: str) -> int:
    """The pid of the only process of that name in this working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == directory and (process / "comm").read_text().strip() == program:
                found.append(int(process.name))
    (pid,) = found
    return pid


def run_pod(cluster: Cluster) -> str:
    """Start a pod, and return a word that only its command line has."""
    mark = str(uuid.uuid4().int % 10**9 + 10**9)
    container = {"name": "c", "image": "none", "command": ["sh", "-c", f"sleep {mark} & wait"]}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sleeper", "namespace": "default"},
        "spec": {"containers": [container]},
    }
    cluster.kubectl.apply(manifest)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=120s", within=130)
    until(lambda: processes_with(mark))
    return mark


def until_nothing_is_left(paths: ClusterPaths, *marks: str) -> None:
    assert wait_until_unlocked(paths.name, within=60)
    words = (str(paths.run), str(paths.state / "control-plane"), *marks)
    until(lambda: not processes_with(*words), what=f"no process with {words}")
    assert not paths.run.exists()
    assert {path.name for path in paths.state.iterdir()} == {"logs"}
    # The kernel closes the sockets of a killed process after its command line is gone.
    until(lambda: str(paths.run) not in Path("/proc/net/unix").read_text(), what="no socket is left")


@pytest.mark.parametrize(
    ("number", "control_plane"),
    [
        pytest.param(signal.SIGINT, EMBEDDED, id="SIGINT"),
        pytest.param(signal.SIGTERM, EMBEDDED, id="SIGTERM"),
        pytest.param(signal.SIGKILL, EMBEDDED, id="SIGKILL"),
        pytest.param(signal.SIGKILL, KUBERNETES, id="SIGKILL-kubernetes", marks=pytest.mark.kube),
    ],
)
def test_nothing_is_left_after_any_signal(
    file: Path, name: str, number: signal.Signals, control_plane: str
) -> None:
    child = started(file, name, f"--control-plane={control_plane}")
    paths = ClusterPaths(name)
    mark = run_pod(Cluster(name))
    until(lambda: len(soft_daemons(paths)) == 2)
    child.send_signal(number)
    output, progress = child.communicate(timeout=120)
    until_nothing_is_left(paths, mark)
    assert child.returncode == (-9 if number is signal.SIGKILL else 0)
    assert output == f"export KUBECONFIG={paths.kubeconfig}\n"
    kind = "etcd, kube-apiserver" if control_plane == KUBERNETES else "embedded, not Kubernetes"
    assert re.search(rf"\d\.\d s   control plane: {kind}", progress), progress


@pytest.mark.parametrize(
    ("control_plane", "command", "program"),
    [
        pytest.param(EMBEDDED, "python", "embedded-control-plane", id="embedded"),
        pytest.param(KUBERNETES, "etcd", "etcd", id="etcd", marks=pytest.mark.kube),
    ],
)
def test_the_cluster_stops_when_a_part_of_its_control_plane_ends(
    file: Path, name: str, control_plane: str, command: str, program: str
) -> None:
    child = started(file, name, "--no-driver", f"--control-plane={control_plane}")
    paths = ClusterPaths(name)
    os.kill(pid_in(paths.control_plane, command), signal.SIGKILL)
    _, progress = child.communicate(timeout=120)
    assert child.returncode == 1
    log = paths.log(program)
    assert (
        f"imex: {program} ended unexpectedly (SIGKILL), and the cluster cannot run without it; log: {log}"
        in progress
    )
    assert log.exists()
    until_nothing_is_left(paths)


def test_two_clusters_run_side_by_side(file: Path, name: str) -> None:
    child = started(file, name)
    cluster = Cluster(name)
    with running(of_racks(1, "gb200-nvl72", name=f"other-{uuid.uuid4().hex[:6]}")) as other:
        assert other.number != cluster.number
        addresses = {node.address for node in cluster.nodes.values()}
        assert not addresses & {node.address for node in other.nodes.values()}
        assert len(cluster.kubectl.get("nodes")["items"]) == 2
        assert len(other.kubectl.get("nodes")["items"]) == 18
        refused = imex("up", file, f"--name={name}")
        assert refused.returncode == 1
        assert f"cluster {name} is already running (pid {child.pid}): stop it with `imex down" in refused.stderr
        assert is_ready(name)
        cluster.ask("stop")
        child.communicate(timeout=120)
        assert child.returncode == 0
        until_nothing_is_left(cluster.paths)
        assert len(other.kubectl.get("nodes")["items"]) == 18


def test_a_detached_cluster_runs_until_imex_down(file: Path, name: str) -> None:
    up = imex("up", file, f"--name={name}", "--detach")
    paths = ClusterPaths(name)
    assert up.returncode == 0, up.stderr
    assert up.stdout == f"export KUBECONFIG={paths.kubeconfig}\n"
    assert "2 nodes Ready, ResourceSlices published" in up.stderr
    cluster = Cluster(name)
    assert cluster.status() == {"name": name, "number": cluster.number, "nodes": 2, "down": []}
    again = imex("up", file, f"--name={name}", "--detach")
    assert again.returncode == 1
    assert "is already running" in again.stderr
    down = imex("down", f"--name={name}")
    assert down.returncode == 0, down.stderr
    assert not is_locked(name)
    until_nothing_is_left(paths)
    down_again = imex("down", f"--name={name}")
    assert down_again.returncode == 1
    assert f"cluster {name} is not running" in down_again.stderr


@pytest.mark.kube
def test_a_cluster_that_is_stopped_during_startup_leaves_nothing(file: Path, name: str) -> None:
    argv = [*IMEX, "up", str(file), f"--name={name}", "--control-plane=kubernetes"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    paths = ClusterPaths(name)
    until(paths.log("kube-apiserver").exists)
    child.send_signal(signal.SIGTERM)
    output, progress = child.communicate(timeout=120)
    assert output == ""
    assert "stopped during startup" in progress
    until_nothing_is_left(paths)
