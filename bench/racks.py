"""Simulated racks on a real control plane: how fast they start, what they cost, how fast a job starts."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.line import Line, line
from imex_dra.api.views import PODS
from imex_dra.kube.client import Client, Selection
from imex_sandbox.cluster.handle import Cluster, running
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.progress import Progress
from imex_sandbox.racks import of_racks
from tests.sandbox.cluster.namespace import Namespace

PROFILE = "gb200-nvl72"
HOLLOW_RACKS = 28
STEADY_SECONDS = 30.0
BURSTS = 3
MEGABYTE = 1024.0


def from_nothing(progress: Progress) -> Iterator[Line]:
    """From the start of `imex up` until 36 nodes are Ready and, with the driver, have a ResourceSlice."""
    progress.show("the control plane alone")
    alone = _control_plane_alone()
    for variant, flags in (("with the driver", ()), ("without a driver", ("--no-driver",))):
        progress.show(variant)
        began = time.monotonic()
        with _racks(2, *flags):
            taken = time.monotonic() - began
        yield line(
            f"36 nodes ready from nothing, {variant}",
            taken,
            "s",
            yardstick=alone,
            yardstick_is="the control plane alone",
        )


def hollow(progress: Progress) -> Iterator[Line]:
    """Hundreds of nodes whose containers only pretend to run. Requests are counted in the audit log."""
    nodes = HOLLOW_RACKS * 18
    alone = _control_plane_alone()
    began = time.monotonic()
    with _racks(HOLLOW_RACKS, "--no-driver", "--hollow") as cluster:
        taken = time.monotonic() - began
        progress.show("idle")
        before = _requests(cluster)
        time.sleep(STEADY_SECONDS)
        rate = (_requests(cluster) - before) / STEADY_SECONDS
        kubelets, server = (
            _resident(cluster, "imex_sandbox.kubelet"),
            _resident(cluster, "kube-apiserver"),
        )
    name = f"{nodes} hollow nodes"
    yield line(
        f"{name} ready from nothing",
        taken,
        "s",
        yardstick=alone,
        yardstick_is="the control plane alone",
    )
    yield line(
        f"memory of {name}' kubelets", kubelets, "MB", yardstick=server, yardstick_is="kube-apiserver beside them"
    )
    yield line(
        f"requests of {name} at rest",
        rate,
        "requests/s",
        yardstick=nodes / 10,
        yardstick_is="a Lease renewal of each in 10 s",
    )


def burst(progress: Progress) -> Iterator[Line]:
    """18 pods of a new ComputeDomain on one rack, created together, and the same pods without a claim.

    The time starts when the last pod is bound. It ends when the last claim is prepared, according to the logs of
    imex-node, and when the last pod is Ready. The values are medians of a few alternating bursts.
    """
    with _racks(2) as cluster:
        namespace = Namespace(cluster)
        plain: list[float] = []
        ready: list[float] = []
        prepared: list[float] = []
        for number in range(BURSTS):
            progress.show(f"burst {number + 1}/{BURSTS}")
            _, took = asyncio.run(_burst(cluster, namespace, ""))
            plain.append(took)
            namespace.domain(f"train-{number}")
            bound, took = asyncio.run(_burst(cluster, namespace, f"train-{number}"))
            ready.append(took)
            prepared.append(_last_prepared(cluster, namespace) - bound)
    floor = sorted(plain)[len(plain) // 2]
    yardstick = "the same pods without a claim: last bound to last Ready"
    for what, times, budget in (("prepared", prepared, 1.0), ("Ready", ready, None)):
        yield line(
            f"18 pods of a new ComputeDomain, last bound to all {what}",
            sorted(times)[len(times) // 2],
            "s",
            yardstick=floor,
            yardstick_is=yardstick,
            at_most=budget,
        )


BENCHMARKS = (from_nothing, hollow, burst)


@contextmanager
def _racks(count: int, *flags: str) -> Iterator[Cluster]:
    with running(of_racks(count, PROFILE, name="bench"), "--control-plane=kubernetes", *flags) as cluster:
        yield cluster


def _control_plane_alone() -> float:
    with tempfile.TemporaryDirectory(prefix="imex-") as directory:
        began = time.monotonic()
        with ControlPlane(Path(directory)):
            return time.monotonic() - began


def _requests(cluster: Cluster) -> int:
    with cluster.audit_log.open("rb") as log:
        return sum(1 for _ in log)


def _resident(cluster: Cluster, word: str) -> float:
    """Resident memory, in MB, of the cluster's process that has this word in its command line."""
    for process in Path("/proc").glob("[0-9]*"):
        command = (process / "cmdline").read_text() if (process / "cmdline").exists() else ""
        if word in command and str(cluster.paths.state) in command:
            status = (process / "status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0]) / MEGABYTE
    raise LookupError(f"cluster {cluster.name} has no process with {word} in its command line")


async def _burst(cluster: Cluster, namespace: Namespace, template: str) -> tuple[float, float]:
    """The time at which the last pod was bound, and the seconds from then until the last pod was Ready."""
    nodes = [node.name for node in cluster.racks["r0"]]
    pods = [namespace.pod(f"p{index}", node, template=template) for index, node in enumerate(nodes)]
    async with _connected(cluster) as client:
        async with client.watch(PODS, Selection(namespace.name), inactivity=120) as lines:
            creation = asyncio.create_task(asyncio.to_thread(cluster.kubectl.apply, *pods))
            bound, ready = await _follow(lines, len(pods))
        await creation
    if not template:
        namespace.kubectl("delete", "pods", "--all", "--timeout=120s")
    return bound, ready - bound


async def _follow(lines: AsyncIterator[list[bytes]], count: int) -> tuple[float, float]:
    bound: dict[str, float] = {}
    ready: dict[str, float] = {}
    async for batch in lines:
        now = time.time()
        for pod in _pods(batch):
            name = pod["metadata"]["name"]
            if pod["spec"].get("nodeName"):
                bound.setdefault(name, now)
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])):
                ready.setdefault(name, now)
        if len(ready) == count:
            break
    return max(bound.values()), max(ready.values())


def _pods(batch: list[bytes]) -> list[dict[str, Any]]:
    events = [json.loads(text) for text in batch if text]
    return [event["object"] for event in events if event["type"] != "BOOKMARK"]


def _last_prepared(cluster: Cluster, namespace: Namespace) -> float:
    """The time at which the last claim was prepared. Deletes the pods, so that the next burst is alone."""
    moments = [
        datetime.fromisoformat(entry["timestamp"]).astimezone(UTC).timestamp()
        for entry in map(json.loads, cluster.paths.log("drivers").read_text().splitlines())
        if entry["event"] == "prepared" and entry["claim"].startswith(f"{namespace.name}/")
    ]
    namespace.kubectl("delete", "pods", "--all", "--timeout=120s")
    return max(moments)


@asynccontextmanager
async def _connected(cluster: Cluster) -> AsyncIterator[Client]:
    client = Client.connect("imex-bench", cluster.kubeconfig)
    try:
        yield client
    finally:
        await client.close()
