"""`imex node` beside another driver of the same name, on a real API server."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import OTHER_DRIVER, Condition, Key, ObjectMeta
from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import NVLINK_NODES, Fabric, FabricState
from imex_dra.api.reasons import Reason
from imex_dra.api.views import RESOURCE_SLICES, Device, Pool, ResourceSlice, ResourceSliceSpec
from imex_dra.base.errors import OtherDriver
from imex_dra.kube.client import Client
from imex_dra.node.devices import DevicePublisher
from imex_dra.node.grant import Snapshot, node_obstacle
from imex_dra.node.otherdriver import check_before_registration
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile
from tests.kube.faultproxy import FaultProxy
from tests.node.publishing_node import PublishingNode
from tests.node.snapshots import HEALTHY
from tests.waiting import until, until_async


@pytest.fixture
def root() -> Iterator[Path]:
    """Not tmp_path, which is too long for a unix socket."""
    path = Path(tempfile.mkdtemp(prefix="n-"))
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def foreign_slice(node: PublishingNode) -> AsyncIterator[str]:
    spec = ResourceSliceSpec(DRIVER, Pool(node.name, 1, 1), node.name, (Device("channel-0"),))
    foreign = ResourceSlice(ObjectMeta(name=f"{node.name}-{DRIVER}-x7f"), spec)
    created = await node.client.create(RESOURCE_SLICES, foreign)
    try:
        yield created.metadata.name
    finally:
        await node.client.delete(RESOURCE_SLICES, created)


def start_program(node: PublishingNode, root: Path, control_plane: ControlPlane) -> subprocess.Popen[str]:
    NodeRoot(root).make(HardwareFile(fabric=Fabric(FabricState.NONE), boot_id="boot-1"), address="127.0.0.1")
    command = [
        *(sys.executable, "-m", "imex_dra.cli", "node", f"--node-name={node.name}", "--address=127.0.0.1"),
        *(f"--hardware=simulated:{root}", f"--kubeconfig={control_plane.kubeconfig()}"),
        *(f"--kubelet-dir={root / 'k'}", f"--cdi-dir={root / 'cdi'}", f"--imex-dir={root / 'imex'}"),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def registrations(root: Path) -> list[Path]:
    return list((root / "k" / "plugins_registry").glob("*.sock"))


async def ended(program: subprocess.Popen[str]) -> str:
    _, error = await asyncio.to_thread(program.communicate, timeout=60)
    assert program.returncode == 3, error
    return error.splitlines()[-1]


@pytest.mark.kube
async def test_it_does_not_register_while_the_other_driver_publishes_devices_of_the_node(
    publishing_node: PublishingNode, root: Path, control_plane: ControlPlane
) -> None:
    node = publishing_node
    # A file in place of the directory: a program that tries to register fails in another way.
    (root / "k").mkdir()
    (root / "k" / "plugins_registry").touch()
    async with foreign_slice(node) as name:
        said = await ended(start_program(node, root, control_plane))
        assert f"publishes devices of node {node.name} (ResourceSlice {name})" in said
        (condition,) = (await node.client.get(NVLINK_NODES, Key("", node.name))).status.conditions
        assert (condition.type, condition.status) == (OTHER_DRIVER, "True")
        assert condition.message in said


@pytest.mark.kube
async def test_it_withdraws_when_the_other_driver_appears_and_serves_again_when_it_is_gone(
    publishing_node: PublishingNode, root: Path, control_plane: ControlPlane
) -> None:
    node = publishing_node

    async def published() -> bool:
        return [found.metadata.name for found in await node.slices()] == [f"imex-{node.name}"]

    first = start_program(node, root, control_plane)
    try:
        await until_async(published)
        async with foreign_slice(node) as name:
            await ended(first)
            assert registrations(root) == []
            assert [found.metadata.name for found in await node.slices()] == [name]
        again = start_program(node, root, control_plane)
        try:
            await until_async(published)
            until(lambda: registrations(root))
            await until_async(lambda: _is_clear(node), what="the condition is gone")
        finally:
            again.kill()
            again.communicate()
    finally:
        first.kill()


async def _is_clear(node: PublishingNode) -> bool:
    found = await node.client.get(NVLINK_NODES, Key("", node.name))
    return all(condition.type != OTHER_DRIVER for condition in found.status.conditions)


@pytest.mark.kube
async def test_the_publisher_leaves_a_foreign_slice_alone(publishing_node: PublishingNode) -> None:
    node = publishing_node
    node.become_healthy()
    async with foreign_slice(node) as name:
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(DevicePublisher(node.client, node.state, node.clock).run(), 60)
        assert raised.value.subgroup(OtherDriver)
        assert [found.metadata.name for found in await node.slices()] == [name]


@pytest.mark.kube
async def test_a_node_that_cannot_reach_the_api_server_registers_after_a_limit(
    proxy: FaultProxy, proxied_client: Client
) -> None:
    proxy.hang()
    await asyncio.wait_for(check_before_registration(proxied_client, "n1", limit=0.2), 60)
    proxy.resume()


def snapshot_with(status: str) -> Snapshot:
    assert HEALTHY.partition is not None
    since = "2026-01-01T00:00:00Z"
    conditions = (Condition(OTHER_DRIVER, status, "OtherDriverPresent", since, "found DaemonSet x/y"),)
    partition_status = structs.replace(HEALTHY.partition.status, conditions=conditions)
    return structs.replace(HEALTHY, watched_partition=structs.replace(HEALTHY.partition, status=partition_status))


def test_a_node_serves_no_claims_while_the_partition_says_that_another_driver_is_present() -> None:
    assert node_obstacle(HEALTHY) is None
    assert node_obstacle(snapshot_with("False")) is None
    obstacle = node_obstacle(snapshot_with("True"))
    assert obstacle is not None
    assert (obstacle.explanation.reason, obstacle.terminal) == (Reason.OTHER_DRIVER_PRESENT, False)
    assert obstacle.explanation.message() == "found DaemonSet x/y"
