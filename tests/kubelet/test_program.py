"""The program that runs many kubelets, as a process of its own."""

import json
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.process import Process
from tests.kubelet.api import NODES, PODS, Api
from tests.kubelet.stage import unique
from tests.sandbox.waiting import eventually

pytestmark = pytest.mark.kube

Start = Callable[..., Process]


@pytest.fixture
def start(cluster: ControlPlane, root: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*names: str, containers: str, **more: Any) -> Process:
        settings = {
            "server": cluster.url,
            "authority": str(cluster.authority.certificate),
            "nodes": [member(cluster, root, name) for name in names],
            "containers": containers,
            **more,
        }
        file = root / f"{names[0]}.json"
        file.write_text(json.dumps(settings))
        argv: list[str | Path] = [sys.executable, "-m", "imex_dra.sandbox.kubelet.program", file]
        process = Process("kubelets", argv, log=root / f"{names[0]}.log")
        started.append(process)
        process.start()
        return process

    yield begin
    for process in started:
        process.stop()


def member(cluster: ControlPlane, root: Path, name: str) -> dict[str, Any]:
    facts = {"name": name, "address": "127.16.0.11", "boot_id": str(uuid.uuid4())}
    return {"facts": facts, "root": str(root / name), "token": cluster.identities.token(f"system:node:{name}")}


def ready(api: Api, name: str) -> bool:
    node = api.find(f"{NODES}/{name}")
    return node is not None and not node["spec"].get("taints")


def pod_on(api: Api, node: str, *command: str) -> str:
    name = unique("pod")
    container = {"name": "c", "image": "none", **({"command": list(command)} if command else {})}
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]}
    api.create(PODS, {"metadata": {"name": name}, "spec": spec})
    return f"{PODS}/{name}"


def is_running(api: Api, pod: str) -> bool:
    return bool(api.get(pod)["status"].get("phase") == "Running")


def test_many_nodes_in_one_process(api: Api, start: Start) -> None:
    process = start("crew-a", "crew-b", containers="hollow")
    for node in ("crew-a", "crew-b"):
        assert eventually(lambda node=node: ready(api, node))  # type: ignore[misc]
        pod = pod_on(api, node)
        assert eventually(lambda pod=pod: is_running(api, pod))  # type: ignore[misc]
        api.delete(pod)
        assert eventually(lambda pod=pod: api.find(pod) is None)  # type: ignore[misc]
    process.stop()
    assert process.exit_code == 0


def test_a_killed_program_leaves_no_container_behind(api: Api, start: Start) -> None:
    mark = f"{random.randrange(10**8, 10**9)}"
    process = start("doomed", containers="processes")
    assert eventually(lambda: ready(api, "doomed"))
    pod = pod_on(api, "doomed", "sh", "-c", f"sleep {mark} & wait")
    assert eventually(lambda: is_running(api, pod))
    assert eventually(lambda: bool(processes_with(mark)))
    process.kill()
    assert eventually(lambda: processes_with(mark) == [])
    api.delete(pod, grace=0)


def test_a_stand_in_runs_for_an_image_that_can_not(api: Api, start: Start) -> None:
    rules = [{"image": "other/*", "argv": ["false"]}, {"image": "nvcr.io/*", "argv": ["sh", "-c", "exit 7"]}]
    process = start("crew-a", containers="processes", rules=rules)
    assert eventually(lambda: ready(api, "crew-a"), 60)
    container = {"name": "c", "image": "nvcr.io/nvidia/nccl-tests", "command": ["all_reduce_perf"]}
    spec = {"nodeName": "crew-a", "automountServiceAccountToken": False, "restartPolicy": "Never"}
    name = unique("pod")
    api.create(PODS, {"metadata": {"name": name}, "spec": {**spec, "containers": [container]}})
    assert eventually(lambda: api.get(f"{PODS}/{name}")["status"].get("phase") == "Failed", 60)
    state = api.get(f"{PODS}/{name}")["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 7
    api.delete(f"{PODS}/{name}")
    process.stop()


def processes_with(word: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found
