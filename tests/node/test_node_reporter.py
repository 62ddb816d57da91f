"""The node's NVLinkNode on a real API server."""

import asyncio

import pytest

from imex_dra.api.meta import Key
from imex_dra.api.nvlinknode import NVLINK_NODES, READY, ImexState, NVLinkNode
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.conditions import find_condition
from imex_dra.node.report import NodeReporter
from imex_dra.node.state import NodeState
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.faultproxy import FaultProxy
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.publishing_node import PublishingNode, running
from tests.node.snapshots import HEALTHY, daemon
from tests.waiting import until_async

pytestmark = pytest.mark.kube


def reporter(node: PublishingNode, disk: NodeDisk, **options: float) -> NodeReporter:
    return NodeReporter(node.client, node.state, disk.prepared_claims(), Clock(), **options)


async def until_reported(node: PublishingNode, state: ImexState) -> None:
    async def reported() -> bool:
        return await node.reported_imex_state() == state

    await until_async(reported)


async def test_the_nvlinknode_is_created_updated_and_created_again_after_a_deletion(
    publishing_node: PublishingNode, disk: NodeDisk
) -> None:
    node = publishing_node

    async def nvlink_node() -> NVLinkNode:
        return await node.client.get(NVLINK_NODES, Key("", node.name))

    async with running(reporter(node, disk).run()):
        node.become_healthy()
        await until_reported(node, ImexState.READY)
        created = await nvlink_node()
        assert [owner.name for owner in created.metadata.owner_references] == [node.name]
        assert {c.type: c.status for c in created.status.conditions} == {"Ready": "True", "Connected": "True"}
        node.become_healthy(daemon=daemon(ImexState.INIT_GPU))
        await until_reported(node, ImexState.INIT_GPU)
        await node.client.delete(NVLINK_NODES, await nvlink_node())
        node.become_healthy()
        await until_reported(node, ImexState.READY)


async def test_a_starting_program_keeps_the_last_report_until_its_snapshot_is_complete(
    publishing_node: PublishingNode, disk: NodeDisk
) -> None:
    """Otherwise the whole partition would become not ready for a moment at every update of the driver."""
    node = publishing_node
    async with running(reporter(node, disk).run()):
        node.become_healthy()
        await until_reported(node, ImexState.READY)
    starting = NodeState(node.name)
    node.state, former = starting, node.state
    assert former.snapshot.is_complete
    async with running(reporter(node, disk, start_limit=100).run()):
        assert {await node.reported_imex_state() for _ in range(20)} == {"READY"}
        starting.update(reading=HEALTHY.reading, daemon=daemon(ImexState.INIT_GPU))
        assert {await node.reported_imex_state() for _ in range(20)} == {"READY"}, "its address is not known yet"
        starting.update(address="10.0.0.1")
        await until_reported(node, ImexState.INIT_GPU)


def count_writes(proxy: FaultProxy) -> int:
    return sum(request.startswith("PATCH") and "/nvlinknodes/" in request for request in proxy.requests)


async def prepared_claims(node: PublishingNode) -> tuple[str, ...]:
    live = await node.client.get(NVLINK_NODES, Key("", node.name))
    return live.status.prepared_claims


async def test_prepares_that_follow_each_other_are_reported_by_one_write_and_an_unprepare_by_none(
    publishing_node: PublishingNode, disk: NodeDisk, proxied_client: Client, proxy: FaultProxy
) -> None:
    node, clock = publishing_node, Clock()
    node.become_healthy()
    writer = NodeReporter(proxied_client, node.state, disk.prepared_claims(), clock)
    async with running(writer.run()):
        await until_reported(node, ImexState.READY)
        before = count_writes(proxy)
        for number in range(3):
            disk.add(prepared_claim(f"c{number}"))
            node.state.last_prepare = clock.monotonic()
            node.state.update(prepares=number + 1)

        async def all_reported() -> bool:
            return await prepared_claims(node) == ("c0", "c1", "c2")

        await until_async(all_reported)
        waited = clock.monotonic() - node.state.last_prepare
        assert waited >= 1.0, "it was reported while the pods were starting"
        assert count_writes(proxy) == before + 1
        disk.remove("c0")
        node.state.update(unprepare_sequence=1)
        disk.remove("c1")
        node.state.update(unprepare_sequence=2)
        node.become_healthy(daemon=daemon(ImexState.INIT_GPU), unprepare_sequence=2, prepares=3)
        await until_reported(node, ImexState.INIT_GPU)
        assert await prepared_claims(node) == ("c2",)
        assert count_writes(proxy) == before + 2


async def test_a_change_that_concerns_the_node_is_reported_at_once_although_claims_are_being_prepared(
    publishing_node: PublishingNode, disk: NodeDisk
) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(reporter(node, disk).run()):
        await until_reported(node, ImexState.READY)
        node.state.last_prepare = Clock().monotonic() + 1000
        node.state.update(prepares=1, daemon=daemon(ImexState.INIT_GPU))
        await until_reported(node, ImexState.INIT_GPU)


async def test_a_deleted_nvlinknode_is_created_again_although_something_changes_all_the_time(
    publishing_node: PublishingNode, disk: NodeDisk
) -> None:
    """On a busy node no period passes without a change. The changes here are none that the NVLinkNode shows."""
    node = publishing_node
    node.become_healthy()
    async with running(reporter(node, disk, period=1.0).run()):
        await until_reported(node, ImexState.READY)
        deleted = await node.client.get(NVLINK_NODES, Key("", node.name))
        await node.client.delete(NVLINK_NODES, deleted)

        async def reported_again() -> bool:
            node.state.update(unprepare_sequence=node.state.snapshot.unprepare_sequence + 1)
            found = await node.client.list(NVLINK_NODES, Selection(fields=f"metadata.name={node.name}"))
            return [f.status.imex_state for f in found if f.metadata.uid != deleted.metadata.uid] == ["READY"]

        await until_async(reported_again)


async def test_a_node_whose_disk_fails_still_reports_its_state_and_recovers(
    publishing_node: PublishingNode, disk: NodeDisk
) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(reporter(node, disk).run()):
        await until_reported(node, ImexState.READY)
        lock = disk.checkpoint.with_suffix(".lock")
        lock.unlink()
        lock.mkdir()  # cannot be opened for writing, not even by root
        node.become_healthy(daemon=daemon(ImexState.INIT_GPU))
        await until_reported(node, ImexState.INIT_GPU)

        async def ready_reason() -> str:
            live = await node.client.get(NVLINK_NODES, Key("", node.name))
            ready = find_condition(live.status.conditions, READY)
            return ready.reason if ready else ""

        assert await ready_reason() == "DiskError"
        lock.rmdir()

        async def recovered() -> bool:
            return await ready_reason() == "DaemonNotReady"

        await until_async(recovered)


async def test_kubectl_waits_for_the_ready_condition_and_shows_it(
    publishing_node: PublishingNode, disk: NodeDisk, control_plane: ControlPlane
) -> None:
    node = publishing_node
    node.become_healthy(daemon=daemon(connected=()), unreachable=("n2",))
    async with running(reporter(node, disk).run()):
        await until_reported(node, ImexState.READY)
        wait = ("wait", "--for=condition=Ready", f"nvlinknode/{node.name}", "--timeout=60s")
        assert "condition met" in await asyncio.to_thread(control_plane.kubectl, *wait, within=90)
        shown = await asyncio.to_thread(control_plane.kubectl, "get", "nvlinknode", node.name, "-o", "wide")
    header, row = shown.splitlines()
    assert header.split()[:7] == ["NAME", "READY", "FABRIC", "PARTITION", "INDEX", "IMEX", "CONNECTED"]
    assert row.split()[:7] == [node.name, "True", "ok", "7b968a6d.1", "0", "READY", "False"]
    assert '["n2"]' in row
    assert f"node {node.name} can serve claims" in row
