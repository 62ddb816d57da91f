"""The driver on a real kubelet: what a channel costs in start time, API requests and memory."""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from bench.controllerrun import WITHOUT_RICH
from bench.line import Line, line
from bench.nodememory import own_pid, resident, resident_together, tree
from imex_dra.api.meta import Key
from imex_dra.api.views import PODS
from imex_dra.hardware.nvml import PROBE
from imex_dra.kube.client import APPLY_PATCH, Client, Selection
from imex_sandbox.kubernetes import driver, images
from imex_sandbox.kubernetes.progress import Progress
from tests.driver.cluster import DriverCluster, running_cluster
from tests.driver.namespace import Namespace
from tests.sandbox.kubernetes.plugin import Plugin

PODS_EACH = 21
IDLE = "a pod with a claim of a driver that does nothing"
KNOWN = "a pod with a channel of a known ComputeDomain"
NEW = "a pod with a channel of a new ComputeDomain"
BURST = 6
AS_IN_AN_IMAGE = (sys.executable, "-c", WITHOUT_RICH)
QUERY = "import sys, runpy; runpy.run_path(sys.argv[1]); print(flush=True); sys.stdin.read()"
_REST = 1.0
"""Seconds for the control plane and the driver to process the end of a pod before the next one starts."""


def start_time(progress: Progress) -> Iterator[Line]:
    """From the request that creates a pod to the watch event that says it is Ready; no image pull, one node.

    There are four kinds of pods: without a claim; with a claim of a driver that does nothing; with a claim of a
    ComputeDomain that already has a channel; and with a claim of a new ComputeDomain, whose channel is assigned
    meanwhile. They run in random order, one at a time, with a second in between, so that the node never holds
    another channel. The value is the difference of medians.
    """
    with _cluster() as cluster:
        times = asyncio.run(_alternate(cluster, progress))
    plain = times.pop("plain")
    for name, taken in times.items():
        yield line(
            f"{name}, over a plain pod",
            median(taken) - median(plain),
            "s",
            yardstick=median(plain),
            yardstick_is="a plain pod, whole",
            at_most=None if name == IDLE else 0.05,
        )
        yield line(
            f"{name}, third quartile less the first",
            _spread(taken),
            "s",
            yardstick=_spread(plain),
            yardstick_is="the same of plain pods",
        )


def writes(progress: Progress) -> Iterator[Line]:
    """Write requests of the driver's service accounts in the audit log, without Events and Leases.

    One ComputeDomain from creation to deletion, with a burst of pods on both nodes of a partition in between.
    """
    with _cluster() as cluster:
        namespace = Namespace(cluster)
        before = len(cluster.audit_events())
        _create_and_delete_domain(cluster, namespace)
        entries = cluster.audit_events()[before:]
    counted = {name: sum(_is_write(entry, name) for entry in entries) for name in ("imex-controller", "imex-node")}
    yardstick = sum(
        entry["verb"] in _WRITES and "kube-scheduler" in entry["user"]["username"] for entry in entries
    )
    # Each of the two nodes reports once that the claims of the burst are prepared.
    budgets = {"imex-controller": 9, "imex-node": 2}
    for name, budget in budgets.items():
        yield line(
            f"API writes by {name}, one ComputeDomain's whole life, {BURST} pods",
            counted[name],
            "requests",
            yardstick=yardstick,
            yardstick_is="the scheduler's writes for the same pods",
            at_most=budget,
        )


def memory(progress: Progress) -> Iterator[Line]:
    """Resident memory of the driver's programs after a few pods. The yardstick is the kubelet of the same node.

    Without rich, which an image does not have. On a node are `imex node` and the supervisor, which is a few
    shells; nvidia-imex itself does not count. Of all of them together, a page that several share counts once.
    Every 10 s a process of ours queries NVML for a moment: it is measured with all its modules, but without
    NVIDIA's library.
    """
    with patch.object(driver, "_IMEX", AS_IN_AN_IMAGE), _cluster() as cluster:
        _create_and_delete_domain(cluster, Namespace(cluster))
        node = cluster.drivers["a0"]
        kubelet = resident(node.node.kubelet)
        ours = [own_pid(node.program), *tree(own_pid(node.supervisor), without="python")]
        query = [sys.executable, "-I", "-S", "-c", QUERY, str(PROBE)]
        probe = subprocess.Popen(query, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert probe.stdout is not None
            probe.stdout.readline()
            figures = {
                "imex controller, three nodes": (resident(cluster.controller), 60),
                "imex node, three nodes": (resident(node.program), 70),
                "everything on a node": (resident_together(ours), 70),
                "everything on a node, while NVML is queried": (resident_together([*ours, probe.pid]), 70),
            }
        finally:
            probe.communicate()
        for name, (value, budget) in figures.items():
            yield line(
                f"memory of {name}", value, "MB", yardstick=kubelet, yardstick_is="the kubelet", at_most=budget
            )


BENCHMARKS = (start_time, writes, memory)

_WRITES = ("create", "update", "patch", "delete")


@asynccontextmanager
async def _connected(cluster: DriverCluster) -> AsyncIterator[Client]:
    client = Client.connect("imex-bench", cluster.control_plane.kubeconfig())
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def _cluster() -> Iterator[DriverCluster]:
    """Two racks on three real nodes, in a directory with a path that is short enough for sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as directory,
        running_cluster(Path(directory)) as cluster,
    ):
        yield cluster


async def _alternate(cluster: DriverCluster, progress: Progress) -> dict[str, list[float]]:
    """Start times in seconds, by kind of pod."""
    namespace = Namespace(cluster)
    namespace.create_domain("known")
    times: dict[str, list[float]] = defaultdict(list)
    with Plugin(cluster.drivers["a0"].node) as plugin:
        cluster.kubectl.apply(*plugin.objects("idle", namespace.name))
        async with _connected(cluster) as client:
            await _time(client, namespace, "known")
            for number in range(PODS_EACH):
                progress.show(f"pod {number + 1}/{PODS_EACH}")
                fresh = f"new-{number}"
                namespace.create_domain(fresh)
                cluster.until(partial(namespace.condition, fresh, "Ready"))
                kinds = {"plain": "", IDLE: "idle", KNOWN: "known", NEW: fresh}
                for kind in random.sample(list(kinds), len(kinds)):
                    times[kind].append(await _time(client, namespace, kinds[kind]))
    return {kind: times[kind] for kind in ("plain", IDLE, KNOWN, NEW)}


def _spread(times: list[float]) -> float:
    """The interquartile range."""
    first, _, third = quantiles(times, n=4)
    return third - first


async def _time(client: Client, namespace: Namespace, template: str) -> float:
    name = f"p-{uuid.uuid4().hex[:8]}"
    selection = Selection(namespace.name, fields=f"metadata.name={name}")
    async with client.watch(PODS, selection, inactivity=60) as lines:
        start = time.monotonic()
        await client.patch(
            PODS,
            Key(namespace.name, name),
            _pod(name, template),
            content_type=APPLY_PATCH,
            fieldManager="imex-bench",
        )
        async for batch in lines:
            if any(text and _is_ready(text) for text in batch):
                break
        taken = time.monotonic() - start
    await asyncio.to_thread(namespace.delete, "pod", name)
    await asyncio.sleep(_REST)
    return taken


def _pod(name: str, template: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": images.BUSYBOX, "command": ["sleep", "10000"]}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": "a0"},
        "containers": [container],
    }
    if template:
        spec["resourceClaims"] = [{"name": "channel", "resourceClaimTemplateName": template}]
        container["resources"] = {"claims": [{"name": "channel"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _is_ready(text: bytes) -> bool:
    conditions = json.loads(text)["object"].get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _create_and_delete_domain(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("train")
    pods = {f"p{number}": "a0" if number % 2 else "a1" for number in range(BURST)}
    cluster.kubectl.apply(*(namespace.pod_manifest(name, node, template="train") for name, node in pods.items()))
    namespace.until_running(*pods)
    cluster.until(lambda: namespace.ready_nodes("train") == "2/2")
    namespace.kubectl("delete", "computedomain", "train", "--wait=false")
    cluster.until(lambda: namespace.condition("train", "Deleting") != {})
    namespace.delete("pods", "--all")
    cluster.until(lambda: not namespace.exists("computedomain", "train"))


def _is_write(entry: dict[str, Any], account: str) -> bool:
    if entry["user"]["username"] != f"system:serviceaccount:imex-dra:{account}":
        return False
    return entry["verb"] in _WRITES and entry["objectRef"]["resource"] not in ("events", "leases")
