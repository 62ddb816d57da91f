"""The guard against NVIDIA's DRA driver on a real API server."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from imex_dra.api.meta import OTHER_DRIVER, Key
from imex_dra.api.names import DRIVER, LEASE, NAMESPACE
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.views import LEASES, NODES
from imex_dra.base.clock import Clock
from imex_dra.base.errors import OtherDriver
from imex_dra.controller.otherdriver import OtherDriverGuard
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow]


def daemon_set(namespace: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "dra-driver-nvidia-gpu"}
    container = {
        "name": "compute-domains",
        "image": "example.invalid/driver",
        "command": ["bash", "-c"],
        "args": ["compute-domain-kubelet-plugin -v 4"],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "dra-driver-nvidia-gpu-kubelet-plugin", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def lease(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "nvidia-dra-driver-gpu-controller", "namespace": namespace},
        "spec": {
            "holderIdentity": "pod-1",
            "leaseDurationSeconds": 600,
            "renewTime": Clock().now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def foreign_slice(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}-x7f"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "channel-0", "attributes": {"type": {"string": "channel"}}}],
        },
    }


@asynccontextmanager
async def existing(control_plane: ControlPlane, *objects: dict[str, Any]) -> AsyncIterator[None]:
    for namespace in {found["metadata"].get("namespace") for found in objects} - {None}:
        control_plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    control_plane.kubectl.apply(*objects)
    try:
        yield
    finally:
        control_plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(objects))


class Work:
    """What the guard runs: counts how often it runs, and whether it does at the moment."""

    def __init__(self) -> None:
        self.starts, self.running = 0, False

    async def __call__(self) -> None:
        self.starts, self.running = self.starts + 1, True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False


async def guarded(cluster: Cluster, work: Callable[[], Any]) -> str:
    """Runs the work until another driver is found; returns the error."""
    guard = OtherDriverGuard(cluster.client, "test", NAMESPACE, Clock())
    with pytest.raises(ExceptionGroup) as raised:
        await guard.run(work)
    (error,) = raised.value.exceptions
    assert isinstance(error, OtherDriver)
    return str(error)


@pytest.fixture
async def partition(cluster: Cluster) -> str:
    """An NVLinkPartition with one member."""
    await cluster.create_node("a")
    await cluster.settle(await cluster.reconcilers())
    return cluster.partition


async def condition(cluster: Cluster) -> str:
    return (await cluster.partition_conditions()).get(OTHER_DRIVER, ("", ""))[0]


@pytest.mark.parametrize("make", [daemon_set, lease], ids=["DaemonSet", "Lease"])
async def test_nothing_runs_while_the_other_driver_is_installed(
    cluster: Cluster, control_plane: ControlPlane, partition: str, make: Callable[[str], dict[str, Any]]
) -> None:
    work, found = Work(), make("gpu-operator")
    async with existing(control_plane, found):
        message = await asyncio.wait_for(guarded(cluster, work), 60)
        assert f"{found['kind']} gpu-operator/{found['metadata']['name']}" in message
        assert "resources.computeDomains.enabled=false" in message
        assert work.starts == 0
        status, said = (await cluster.partition_conditions())[OTHER_DRIVER]
        assert (status, said) == ("True", message)
        events = control_plane.kubectl.get(
            "events", "-n", "default", "--field-selector", f"involvedObject.name={partition}"
        )
        assert "OtherDriverPresent" in {event["reason"] for event in events["items"]}


async def test_the_work_stops_when_the_other_driver_is_installed_and_runs_again_when_it_is_gone(
    cluster: Cluster, control_plane: ControlPlane, partition: str
) -> None:
    work = Work()
    task = asyncio.create_task(guarded(cluster, work))
    await until_async(lambda: work.running)
    async with existing(control_plane, daemon_set("gpu-operator")):
        await asyncio.wait_for(task, 60)
        assert not work.running
        assert await condition(cluster) == "True"
    task = asyncio.create_task(guarded(cluster, work))
    await until_async(lambda: work.starts == 2)
    assert await condition(cluster) == "False"
    task.cancel()
    await asyncio.wait({task})


async def test_what_a_user_or_a_single_node_can_create_does_not_stop_the_cluster(
    cluster: Cluster, control_plane: ControlPlane, partition: str
) -> None:
    work, node = Work(), f"a-{cluster.tag}"
    task = asyncio.create_task(guarded(cluster, work))
    await until_async(lambda: work.running)

    def recorded() -> str:
        events = control_plane.kubectl.get("events", "-n", "default")["items"]
        name = f"{node}-{DRIVER}-x7f"
        return next((e["note" if "note" in e else "message"] for e in events if name in str(e)), "")

    async with existing(control_plane, foreign_slice(node)):
        said = await until_async(recorded)
        assert f"publishes devices of node {node}" in said
        assert work.running
    of_a_user = (daemon_set(cluster.namespace), lease(cluster.namespace))
    async with existing(control_plane, *of_a_user), existing(control_plane, foreign_slice(node)):
        message = await asyncio.wait_for(task, 60)
    # It stopped only when there was a slice, too.
    assert f"DaemonSet {cluster.namespace}/" in message
    assert f"ResourceSlice {node}-" in message
    assert work.starts == 1


async def test_the_controller_ends_with_status_3_and_writes_no_compute_domain(
    cluster: Cluster, control_plane: ControlPlane, partition: str
) -> None:
    domain = await cluster.create_domain("train")
    control_plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    command = [sys.executable, "-m", "imex_dra.cli", "controller", "--metrics-address="]
    command.append(f"--kubeconfig={control_plane.kubeconfig()}")
    async with existing(control_plane, daemon_set("gpu-operator")):
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 3, ended.stderr
    assert "imex: another driver named compute-domain.nvidia.com runs in this cluster" in ended.stderr
    assert (await cluster.domains())["train"] == domain
    assert not await cluster.has_template("train")
    for node in await cluster.client.list(NODES):
        assert "nvidia.com/gpu.clique" not in node.metadata.labels or cluster.tag not in node.metadata.name
    released = await cluster.client.get(LEASES, Key(NAMESPACE, LEASE))
    assert released.spec.holder_identity == ""
    assert (await cluster.client.get(NVLINK_PARTITIONS, Key("", partition))).status.channels == ()
