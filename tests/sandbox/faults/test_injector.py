"""Injecting and undoing faults through the files and the control socket of a cluster."""

import json

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.faults.injector import Injector
from imex_sandbox.faults.kinds import (
    AnyFault,
    BreakFabric,
    ChangeClique,
    CutApi,
    DropTraffic,
    FailApi,
    HangProcess,
    KillNode,
    KillProcess,
    RebootNode,
    ReloadDriver,
)
from imex_sandbox.noderoot import NodeRoot
from tests.sandbox.faults.fakecluster import PARTITION, FakeCluster


@pytest.fixture
def injector(fake: FakeCluster) -> Injector:
    return Injector(fake.handle)


def root(fake: FakeCluster, node: str) -> NodeRoot:
    return NodeRoot(fake.paths.node(node))


@pytest.mark.parametrize(
    ("fault", "injected", "undone"),
    [
        (KillNode(nodes=("r0-n01",)), ["power-off r0-n01"], ["power-on r0-n01"]),
        (
            HangProcess(program="nvidia-imex", nodes=("r0-n01",)),
            ["hang nvidia-imex r0-n01"],
            ["resume nvidia-imex r0-n01"],
        ),
        (KillProcess(program="apiserver", for_="9s"), ["kill kube-apiserver"], ["start kube-apiserver"]),
        (CutApi(nodes=("r0-n01",)), ["proxy r0-n01 stall=True"], ["proxy r0-n01"]),
        (
            FailApi(nodes=("r0-n01",), share=0.3),
            ["proxy r0-n01 errors=[{'code': 503, 'share': 0.3, 'retry_after': None}]"],
            ["proxy r0-n01"],
        ),
    ],
    ids=lambda value: value.kind if not isinstance(value, list) else "",
)
def test_a_fault_sends_requests_to_the_cluster_when_it_is_injected_and_when_it_is_undone(
    fake: FakeCluster, injector: Injector, fault: AnyFault, injected: list[str], undone: list[str]
) -> None:
    with injector.during(fault):
        assert fake.requests == injected
        assert [entry.fault for entry in Injector(fake.handle).active()] == [fault]
    assert fake.requests == [*injected, *undone]
    assert injector.active() == []


def test_a_fault_with_an_immediate_effect_leaves_nothing_to_undo(fake: FakeCluster, injector: Injector) -> None:
    assert injector.inject(RebootNode(nodes=("r0-n0[12]",))) is None
    assert fake.requests == ["power-off r0-n01", "power-on r0-n01", "power-off r0-n02", "power-on r0-n02"]
    assert injector.active() == []


def test_hardware_faults_change_their_own_fields_only(fake: FakeCluster, injector: Injector) -> None:
    node = root(fake, "r0-n01")
    before = node.hardware()
    with injector.during(BreakFabric(nodes=("r0-n01",), reason="links are down")):
        assert node.hardware().fabric == Fabric(FabricState.BROKEN, "links are down")
        node.boot("second")
        with injector.during(ChangeClique(nodes=("r0-n01",), clique=7)):
            assert node.hardware().partition == PARTITION.replace(".1", ".7")
        assert node.hardware().fabric.state is FabricState.BROKEN
    assert node.hardware() == structs.replace(before, boot_id="second")


def test_traffic_is_dropped_by_both_nodes(fake: FakeCluster, injector: Injector) -> None:
    def network(node: str) -> object:
        return json.loads((fake.paths.node(node) / "network.json").read_text())

    with injector.during(DropTraffic(between=("r0-n00", "r0-n02"))):
        assert network("r0-n00") == {"127.200.0.12": "drop"}
        assert network("r0-n02") == {"127.200.0.10": "drop"}
    assert network("r0-n00") == network("r0-n02") == {}


def test_a_reloaded_driver_has_the_new_major_and_version(fake: FakeCluster, injector: Injector) -> None:
    injector.inject(ReloadDriver(nodes=("r0-n01",), major=241, version="590.1"))
    node = root(fake, "r0-n01")
    assert "241 nvidia-caps-imex-channels" in (node.path / "proc/devices").read_text()
    assert node.hardware().driver_version == "590.1"
    assert fake.requests == ["kill nvidia-imex r0-n01"]


def test_an_unknown_node_changes_nothing(fake: FakeCluster, injector: Injector) -> None:
    with pytest.raises(Misconfigured, match=r"no node matches 'r9-n00'.* at `\$.nodes\[1\]`"):
        injector.inject(KillNode(nodes=("r0-n00", "r9-n00")))
    assert (fake.requests, injector.active()) == ([], [])


def test_a_fault_that_fails_on_one_node_is_undone_on_the_others(fake: FakeCluster, injector: Injector) -> None:
    fake.refused.add("power-off r0-n01")
    with pytest.raises(Rejected, match="cannot power-off r0-n01"):
        injector.inject(KillNode(nodes=("*",)))
    assert "power-on r0-n00" in fake.requests
    assert injector.active() == []


def test_an_undo_that_fails_can_be_tried_again(fake: FakeCluster, injector: Injector) -> None:
    active = injector.inject(KillNode(nodes=("r0-n01",)))
    assert active is not None
    fake.refused.add("power-on r0-n01")
    with pytest.raises(Rejected, match="cannot power-on"):
        injector.undo(active.id)
    fake.refused.clear()
    assert injector.undo(active.id) == active
    with pytest.raises(Rejected, match="fault 1 is not active"):
        injector.undo(active.id)


def test_the_numbers_of_faults_are_not_reused(injector: Injector) -> None:
    first, second = (injector.inject(KillNode(nodes=(f"r0-n0{number}",))) for number in range(2))
    assert first
    assert second
    injector.undo(second.id)
    third = injector.inject(KillNode(nodes=("r0-n02",)))
    assert third is not None
    assert [first.id, second.id, third.id] == [1, 2, 3]
