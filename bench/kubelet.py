"""The driver on a real kubelet: what a channel costs a pod, the API server, and the node's memory."""

import asyncio
import json
import random
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

from bench.line import Line, line
from imex_dra.api.meta import Key
from imex_dra.api.views import PODS
from imex_dra.kube.client import APPLY_PATCH, Client, Selection
from imex_dra.sandbox.kubernetes import images
from imex_dra.sandbox.kubernetes.machine import Inhabitant
from imex_dra.sandbox.kubernetes.progress import Progress
from imex_dra.sandbox.process import Process
from tests.driver.site import Site, Team, running_site
from tests.sandbox.plugin import Plugin

PODS_EACH = 21
IDLE = "a pod with a claim of a driver that does nothing"
KNOWN = "a pod with a channel of a known ComputeDomain"
NEW = "a pod with a channel of a new ComputeDomain"
BURST = 6
MEGABYTE = 1024.0
_REST = 1.0
"""Seconds in which the control plane and ours write down that a pod is gone, which is no part of the next one."""


def start_time(progress: Progress) -> Iterator[Line]:
    """From the request that creates a pod to the watch event that says it is Ready; nothing to pull, one node.

    A plain pod; one that claims from a driver that answers at once and does nothing; one that claims from a
    ComputeDomain that has its channel; and a first one of a ComputeDomain, whose channel is assigned meanwhile.
    In random turns, each after the last one is gone from its node and a second has passed, so that the node holds
    no other channel. The value is the difference of medians.
    """
    with _site() as site:
        times = asyncio.run(_alternate(site, progress))
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
    """Requests that change something, from the audit log, by our programs' accounts, Events and Leases aside.

    One ComputeDomain from creation to the end, with a burst of pods on both nodes of a partition in between.
    """
    with _site() as site:
        team = site.namespace()
        before = len(site.requests())
        _live_and_die(site, team)
        entries = site.requests()[before:]
    counted = {name: sum(_is_write(entry, name) for entry in entries) for name in ("imex-controller", "imex-node")}
    yardstick = sum(
        entry["verb"] in _WRITES and "kube-scheduler" in entry["user"]["username"] for entry in entries
    )
    budgets = {"imex-controller": 9, "imex-node": 0}
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
    """Resident memory of our programs after serving a few pods; the yardstick is the kubelet beside them."""
    with _site() as site:
        _live_and_die(site, site.namespace())
        node = site.drivers["a0"]
        kubelet = _resident(node.node.kubelet)
        programs = {
            "imex controller": (site.controller, 60),
            "imex node": (node.program, 70),
            "imex daemon": (node.daemon, 40),
        }
        for name, (process, budget) in programs.items():
            yield line(
                f"memory of {name}, three nodes",
                _resident(process),
                "MB",
                yardstick=kubelet,
                yardstick_is="the kubelet",
                at_most=budget,
            )


BENCHMARKS = (start_time, writes, memory)

_WRITES = ("create", "update", "patch", "delete")


@asynccontextmanager
async def _connected(site: Site) -> AsyncIterator[Client]:
    client = Client.connect("imex-bench", site.control_plane.kubeconfig())
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def _site() -> Iterator[Site]:
    """Two racks on three real nodes, in a directory short enough for sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as directory,
        running_site(Path(directory)) as site,
    ):
        yield site


async def _alternate(site: Site, progress: Progress) -> dict[str, list[float]]:
    """Seconds by kind of pod."""
    team = site.namespace()
    team.domain("known")
    times: dict[str, list[float]] = defaultdict(list)
    with Plugin(site.drivers["a0"].node) as plugin:
        site.kubectl.apply(*plugin.objects("idle", team.name))
        async with _connected(site) as client:
            await _time(client, team, "known")
            for number in range(PODS_EACH):
                progress.show(f"pod {number + 1}/{PODS_EACH}")
                fresh = f"new-{number}"
                team.domain(fresh)
                site.until(partial(team.condition, fresh, "Ready"))
                kinds = {"plain": "", IDLE: "idle", KNOWN: "known", NEW: fresh}
                for kind in random.sample(list(kinds), len(kinds)):
                    times[kind].append(await _time(client, team, kinds[kind]))
    return {kind: times[kind] for kind in ("plain", IDLE, KNOWN, NEW)}


def _spread(times: list[float]) -> float:
    """Of the middle half."""
    first, _, third = quantiles(times, n=4)
    return third - first


async def _time(client: Client, team: Team, template: str) -> float:
    name = f"p-{uuid.uuid4().hex[:8]}"
    selection = Selection(team.name, fields=f"metadata.name={name}")
    async with client.watch(PODS, selection, inactivity=60) as lines:
        start = time.monotonic()
        await client.patch(
            PODS, Key(team.name, name), _pod(name, template), content_type=APPLY_PATCH, fieldManager="imex-bench"
        )
        async for batch in lines:
            if any(text and _is_ready(text) for text in batch):
                break
        taken = time.monotonic() - start
    await asyncio.to_thread(team.delete, "pod", name)
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


def _live_and_die(site: Site, team: Team) -> None:
    team.domain("train")
    pods = {f"p{number}": "a0" if number % 2 else "a1" for number in range(BURST)}
    site.kubectl.apply(*(team.manifest(name, node, template="train") for name, node in pods.items()))
    team.until_running(*pods)
    site.until(lambda: team.ready_nodes("train") == "2/2")
    team.kubectl("delete", "computedomain", "train", "--wait=false")
    site.until(lambda: team.condition("train", "Deleting") != {})
    team.delete("pods", "--all")
    site.until(lambda: not team.exists("computedomain", "train"))


def _is_write(entry: dict[str, Any], account: str) -> bool:
    if entry["user"]["username"] != f"system:serviceaccount:imex-dra:{account}":
        return False
    return entry["verb"] in _WRITES and entry["objectRef"]["resource"] not in ("events", "leases")


def _resident(process: Process) -> float:
    """Of the program itself, which is below `nsenter` if it runs on a node's machine."""
    below = process.children() if isinstance(process, Inhabitant) else [process.pid]
    status = Path(f"/proc/{below[0]}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / MEGABYTE
