"""The process that runs many kubelets."""

import json
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.process import Process
from tests.sandbox.kubelet.api import NODES, PODS, Api
from tests.sandbox.kubelet.fixture import unique
from tests.waiting import until

pytestmark = pytest.mark.kube

ADDRESS = "127.16.0.11"

StartKubelets = Callable[..., Process]


@pytest.fixture
def start_kubelets(cluster: ControlPlane, root: Path) -> Iterator[StartKubelets]:
    started: list[Process] = []

    def start(*names: str, **more: Any) -> Process:
        serving = cluster.authority.server(f"{names[0]}-kubelets", [f"IP:{ADDRESS}"])
        config = {
            "authority": str(cluster.authority.certificate),
            "nodes": [node_config(cluster, root, name) for name in names],
            "serving": {"certificate": str(serving.certificate), "key": str(serving.key)},
            "control": str(root / f"{names[0]}.sock"),
            **more,
        }
        file = root / f"{names[0]}.json"
        file.write_text(json.dumps(config))
        argv: list[str | Path] = [sys.executable, "-m", "imex_sandbox.kubelet", file]
        process = Process("kubelets", argv, log=root / f"{names[0]}.log")
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.stop()


def node_config(cluster: ControlPlane, root: Path, name: str) -> dict[str, Any]:
    return {
        "facts": {"name": name, "address": ADDRESS, "boot_id": str(uuid.uuid4())},
        "root": str(root / name),
        "token": cluster.identities.token(f"system:node:{name}"),
        "server": cluster.url,
    }


def until_node_ready(api: Api, name: str) -> None:
    def ready() -> bool:
        node = api.find(f"{NODES}/{name}")
        return node is not None and not node["spec"].get("taints")

    until(ready)


def create_pod(api: Api, node: str, *command: str, image: str = "none", policy: str = "Always") -> str:
    name = unique("pod")
    container = {"name": "c", "image": image, **({"command": list(command)} if command else {})}
    spec = {
        "nodeName": node,
        "automountServiceAccountToken": False,
        "restartPolicy": policy,
        "containers": [container],
    }
    api.create(PODS, {"metadata": {"name": name}, "spec": spec})
    return f"{PODS}/{name}"


def until_phase(api: Api, pod: str, phase: str) -> None:
    until(lambda: api.get(pod)["status"].get("phase") == phase)


def until_deleted(api: Api, pod: str) -> None:
    api.delete(pod)
    until(lambda: api.find(pod) is None)


def processes_with(word: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def test_one_process_runs_many_nodes(api: Api, start_kubelets: StartKubelets) -> None:
    process = start_kubelets("node-a", "node-b", containers="hollow")
    for node in ("node-a", "node-b"):
        until_node_ready(api, node)
        pod = create_pod(api, node)
        until_phase(api, pod, "Running")
        until_deleted(api, pod)
    process.stop()
    assert process.exit_code == 0


def test_a_killed_process_leaves_no_container_behind(api: Api, start_kubelets: StartKubelets) -> None:
    marker = f"{random.randrange(10**8, 10**9)}"
    process = start_kubelets("node-c", containers="processes")
    until_node_ready(api, "node-c")
    pod = create_pod(api, "node-c", "sh", "-c", f"sleep {marker} & wait")
    until_phase(api, pod, "Running")
    until(lambda: bool(processes_with(marker)))
    process.kill()
    until(lambda: processes_with(marker) == [])
    api.delete(pod, grace=0)


def test_a_stand_in_runs_in_place_of_an_image(api: Api, start_kubelets: StartKubelets) -> None:
    stand_ins = [
        {"image": "other/*", "argv": ["false"]},
        {"image": "nvcr.io/*", "argv": ["sh", "-c", "exit 7"]},
    ]
    process = start_kubelets("node-a", containers="processes", stand_ins=stand_ins)
    until_node_ready(api, "node-a")
    pod = create_pod(api, "node-a", "all_reduce_perf", image="nvcr.io/nvidia/nccl-tests", policy="Never")
    until_phase(api, pod, "Failed")
    (status,) = api.get(pod)["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 7
    until_deleted(api, pod)
    process.stop()
