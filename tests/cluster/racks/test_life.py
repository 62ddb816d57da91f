"""How clusters begin and end: side by side, in the foreground and detached, and nothing is left of them."""

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

from imex_dra.sandbox.cluster.handle import Cluster, is_ready
from imex_dra.sandbox.cluster.hold import free, holder, is_held
from imex_dra.sandbox.cluster.places import Places
from tests.sandbox.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(600)]

IMEX = (sys.executable, "-m", "imex_dra.cli")
SMALL = """
apiVersion: sandbox.imex-dra.io/v1
kind: Cluster
racks: [{name: a, profile: gb200-nvl72, nodes: 2}]
"""
GENEROUS = 180.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a cluster whose state lies in the test's own directory, and that is gone after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    name = f"life-{uuid.uuid4().hex[:6]}"
    yield name
    if (pid := holder(name)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert free(name, within=60)


def imex(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*IMEX, *words], capture_output=True, text=True, timeout=300, check=False)


def started(file: Path, name: str, *flags: str) -> "subprocess.Popen[str]":
    """In the foreground, as from a shell."""
    argv = [*IMEX, "up", str(file), f"--name={name}", *flags]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not eventually(lambda: is_ready(name) or child.poll() is not None, GENEROUS) or child.poll() is not None:
        child.kill()
        pytest.fail(f"it did not start: {child.communicate()}")
    return child


def mentions(*words: str) -> list[str]:
    """Command lines of processes that say one of these words, or have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if any(word.encode() in said for word in words) and process.name != str(os.getpid()):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def pid_in(directory: Path, program: str) -> int:
    """Of the one process of that name that runs there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == directory and (process / "comm").read_text().strip() == program:
                found.append(int(process.name))
    (pid,) = found
    return pid


def running_pod(cluster: Cluster) -> str:
    """A container that can be recognised: returns how."""
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
    assert eventually(lambda: bool(mentions(mark)))
    return mark


def until_nothing_is_left(places: Places, *marks: str) -> None:
    assert free(places.name, within=60)
    words = (str(places.run), str(places.state / "control-plane"), *marks)
    assert eventually(lambda: mentions(*words) == [], 60), mentions(*words)
    assert not places.run.exists()
    assert {path.name for path in places.state.iterdir()} == {"logs"}
    assert not [line for line in Path("/proc/net/unix").read_text().splitlines() if str(places.run) in line]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda ending: ending.name)
def test_however_it_ends_nothing_is_left(file: Path, name: str, ending: signal.Signals) -> None:
    child = started(file, name)
    places = Places(name)
    mark = running_pod(Cluster(name))
    imex_daemons = [line for line in mentions(str(places.run)) if "imex_dra.softimex.daemon" in line]
    assert len(imex_daemons) == 2
    child.send_signal(ending)
    said, told = child.communicate(timeout=120)
    until_nothing_is_left(places, mark)
    assert child.returncode == (-9 if ending is signal.SIGKILL else 0)
    assert said == f"export KUBECONFIG={places.kubeconfig}\n"
    assert re.search(r"\d\.\d s   real control plane", told)


@pytest.mark.parametrize("program", ["etcd", "kube-scheduler"])
def test_it_does_not_go_on_without_a_part_of_its_control_plane(file: Path, name: str, program: str) -> None:
    child = started(file, name, "--no-driver")
    places = Places(name)
    os.kill(pid_in(places.control_plane, program), signal.SIGKILL)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 1
    log = places.log(program)
    assert (
        f"imex: {program} ended unexpectedly (SIGKILL), and without it the cluster can't go on; see {log}" in told
    )
    assert log.exists()
    until_nothing_is_left(places)


def test_two_side_by_side(cluster: Cluster, file: Path, name: str) -> None:
    child = started(file, name)
    other = Cluster(name)
    assert other.number != cluster.number
    assert not {node.address for node in other.nodes.values()} & {node.address for node in cluster.nodes.values()}
    assert len(other.kubectl.get("nodes")["items"]) == 2
    assert len(cluster.kubectl.get("nodes")["items"]) == 36
    refused = imex("up", file, f"--name={name}")
    assert refused.returncode == 1
    assert f"a cluster {name} runs already (pid {child.pid}): `imex down --name {name}` ends it" in refused.stderr
    assert is_ready(name)
    other.ask("stop")
    child.communicate(timeout=120)
    assert child.returncode == 0
    until_nothing_is_left(other.places)
    assert len(cluster.kubectl.get("nodes")["items"]) == 36


def test_detached_and_down(file: Path, name: str) -> None:
    done = imex("up", file, f"--name={name}", "--detach")
    places = Places(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"export KUBECONFIG={places.kubeconfig}\n"
    assert "2 nodes Ready and offering seats" in done.stderr
    cluster = Cluster(name)
    assert cluster.status() == {"name": name, "number": cluster.number, "nodes": 2, "down": []}
    again = imex("up", file, f"--name={name}", "--detach")
    assert again.returncode == 1
    assert "runs already" in again.stderr
    down = imex("down", f"--name={name}")
    assert down.returncode == 0, down.stderr
    assert not is_held(name)
    until_nothing_is_left(places)
    nobody = imex("down", f"--name={name}")
    assert nobody.returncode == 1
    assert f"no cluster {name} runs" in nobody.stderr


def test_one_that_is_stopped_while_it_starts_leaves_nothing(file: Path, name: str) -> None:
    argv = [*IMEX, "up", str(file), f"--name={name}"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    places = Places(name)
    assert eventually(lambda: places.log("kube-apiserver").exists(), 60)
    child.send_signal(signal.SIGTERM)
    said, told = child.communicate(timeout=120)
    assert said == ""
    assert "stopped while it started" in told
    until_nothing_is_left(places)
