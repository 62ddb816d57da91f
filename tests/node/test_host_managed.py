"""`imex node --imex host-managed`: Ready only if membership in the IMEX domain of the hosts is verified."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.nvlinknode import NVLINK_NODES, READY, HostNodeList, ImexState, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.views import NODES, Node
from imex_dra.base.errors import NotFound
from imex_dra.controller.leader import Leader
from imex_dra.daemon.state import DaemonState
from imex_dra.imex.ctl import ImexCtl
from imex_dra.kube.client import Client
from imex_dra.kube.conditions import find_condition
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Snapshot, node_obstacle
from imex_dra.node.nodestatus import node_status
from imex_dra.node.program import run
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.simulated import SimulatedHardware
from tests.daemon.simulatednode import HARDWARE, Rack
from tests.daemon.test_host_managed import Host
from tests.node.publishing_node import running
from tests.node.snapshots import HEALTHY, daemon, healthy_except, member, partition
from tests.waiting import until_async

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALONE = "7b968a6d.71"
LIST = HostNodeList("0123456789abcdef", 2)


def snapshot(*, digest: str = LIST.digest, listed: bool = True, **changes: object) -> Snapshot:
    """Healthy, with these changes of the daemon; `digest`: of the partition."""
    live = partition(member(), member("n2", 1)) if listed else partition(member("n2", 1))
    live = structs.replace(live, status=structs.replace(live.status, node_list_digest=digest))
    found = structs.replace(daemon(), **{"host_list": LIST, **changes})
    return healthy_except(daemon=found, watched_partition=live, host_managed=found.host_list is not None)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (snapshot(), None),
        (snapshot(state=ImexState.UNAVAILABLE, problem="why"), "UNAVAILABLE, not READY: why"),
        (snapshot(state=ImexState.UNAVAILABLE, problem="why", listed=False), "UNAVAILABLE, not READY: why"),
        (snapshot(index=-1), "nvidia-imex-ctl -N on node n1 does not say which entry"),
        (snapshot(index=3, problem="next step"), "runs with index 3, but the node's index"),
        (snapshot(digest="another"), "node n1 has the node list of the host's nvidia-imex, and most members"),
        (snapshot(digest=""), "node n1 has the node list of the host's nvidia-imex, and most members"),
        (snapshot(host_list=None), "node n1 has the node list of imex-dra, and most members"),
        (snapshot(host_list=HostNodeList()), "node n1 has the node list of the host's nvidia-imex"),
        (snapshot(listed=False), "is not a member"),
    ],
)
def test_what_keeps_the_node_from_serving_claims(found: Snapshot, words: str | None) -> None:
    obstacle = node_obstacle(found)
    message = obstacle.explanation.message() if obstacle else ""
    assert (words or "") in message
    assert bool(message) == bool(words)


def status_of(found: Snapshot, last: NVLinkNodeStatus | None = None) -> NVLinkNodeStatus:
    return node_status(found, Checkpoint(), last or NVLinkNodeStatus(), NOW)


def test_a_connection_to_another_node_is_a_remark_of_the_ready_condition() -> None:
    status = status_of(snapshot(problem="the host's nvidia-imex is connected to 7: x"))
    ready = find_condition(status.conditions, READY)
    assert ready is not None
    assert (ready.status, "but the host's nvidia-imex is connected to 7" in ready.message) == ("True", True)


def test_a_node_says_from_the_first_report_on_that_its_host_manages_the_daemon() -> None:
    unqueried = structs.replace(snapshot(), daemon=DaemonState())
    assert status_of(unqueried).host_node_list == HostNodeList()
    assert status_of(unqueried, NVLinkNodeStatus(host_node_list=LIST)).host_node_list == LIST
    assert status_of(HEALTHY, NVLinkNodeStatus(host_node_list=LIST)).host_node_list is None


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because it holds unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="imex-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    connected = Client.connect("imex-node", control_plane.kubeconfig())
    yield connected
    await connected.close()


@pytest.mark.kube
async def test_nodes_whose_hosts_have_one_list_are_members_with_the_hosts_indexes(
    client: Client, directory: Path
) -> None:
    """A real controller and two real node programs, beside two daemons of soft IMEX that the test runs."""
    rack = Rack()
    hosts = {f"host-managed-{n}": Host(rack, n) for n in range(2)}
    entries = [rack.address(7), rack.address(1), rack.address(0)]

    async def live() -> NVLinkPartition | None:
        try:
            return await client.get(NVLINK_PARTITIONS, Key("", ALONE))
        except NotFound:
            return None

    async def indexes() -> dict[str, tuple[int, str]]:
        found = await live()
        return {m.node: (m.index, m.state) for m in found.status.members} if found else {}

    async def ready(name: str) -> tuple[str, str]:
        report = await client.get(NVLINK_NODES, Key("", name))
        condition = find_condition(report.status.conditions, READY)
        return (condition.status, condition.reason) if condition else ("", "")

    async def confirmed() -> bool:
        found = await live()
        return found is not None and found.status.summary.state == "UP" and not found.status.required_generation

    async with AsyncExitStack() as stack:
        stack.callback(rack.close)
        for name, host in hosts.items():
            await client.create(NODES, Node(ObjectMeta(name=name)))
            # Other tests on this API server leave nodes of the usual partition.
            host.node.root.write_hardware(structs.replace(HARDWARE, partition=ALONE))
            host.configure(*entries)
            stack.enter_context(host.running())
            program = run(
                client,
                SimulatedHardware(host.node.root.path),
                node=name,
                address=rack.address(host.number),
                kubelet=directory / name,
                cdi=directory / name / "cdi",
                imex_directory=directory / "unused",
                ctl=ImexCtl(host.node.soft_imex("ctl"), timeout=30),
                host_imex=host.config_of_host,
            )
            await stack.enter_async_context(running(program))
        await stack.enter_async_context(running(Leader(client, "test").run()))
        both = {"host-managed-0": (2, "Ready"), "host-managed-1": (1, "Ready")}

        async def are_members() -> bool:
            return await indexes() == both

        await until_async(are_members)
        await until_async(confirmed)
        found = await live()
        assert found is not None
        reports = [(await client.get(NVLINK_NODES, Key("", name))).status for name in hosts]
        assert {report.host_node_list for report in reports} == {HostNodeList(found.status.node_list_digest, 3)}

        hosts["host-managed-1"].configure(*reversed(entries))

        async def is_not_verified() -> bool:
            return await ready("host-managed-1") == ("False", "NodeListsDiffer")

        await until_async(is_not_verified)
        assert (await ready("host-managed-0"))[0] == "True", "with two lists, the one before counts"
        hosts["host-managed-1"].configure(*entries)
        await until_async(are_members)
        assert not (directory / "unused").exists()
