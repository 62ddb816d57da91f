"""Faults begin and end in a cluster's files and through its socket; what stands is written down for the next."""

import json

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.sandbox.faults.injector import Injector
from imex_dra.sandbox.faults.kinds import (
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
from imex_dra.sandbox.noderoot import NodeRoot
from tests.faults.paper import PARTITION, Paper


@pytest.fixture
def injector(paper: Paper) -> Injector:
    return Injector(paper.cluster)


def root(paper: Paper, node: str) -> NodeRoot:
    return NodeRoot(paper.places.node(node))


@pytest.mark.parametrize(
    ("fault", "there", "back"),
    [
        (KillNode(nodes=("r0-n01",)), ["power-off r0-n01"], ["power-on r0-n01"]),
        (
            HangProcess(program="nvidia-imex", nodes=("r0-n01",)),
            ["hang nvidia-imex r0-n01"],
            ["resume nvidia-imex r0-n01"],
        ),
        (KillProcess(program="apiserver", for_="9s"), ["kill kube-apiserver"], ["start kube-apiserver"]),
        (CutApi(nodes=("r0-n01",)), ["gateway r0-n01 silent=True"], ["gateway r0-n01"]),
        (
            FailApi(nodes=("r0-n01",), share=0.3),
            ["gateway r0-n01 answers=[{'code': 503, 'share': 0.3, 'retry_after': None}]"],
            ["gateway r0-n01"],
        ),
    ],
    ids=lambda value: value.kind if not isinstance(value, list) else "",
)
def test_what_the_cluster_is_asked_for(
    paper: Paper, injector: Injector, fault: AnyFault, there: list[str], back: list[str]
) -> None:
    with injector.during(fault):
        assert paper.requests == there
        assert [entry.fault for entry in Injector(paper.cluster).standing()] == [fault]
    assert paper.requests == [*there, *back]
    assert injector.standing() == []


def test_what_is_over_at_once_leaves_nothing_to_undo(paper: Paper, injector: Injector) -> None:
    assert injector.begin(RebootNode(nodes=("r0-n0[12]",))) is None
    assert paper.requests == ["power-off r0-n01", "power-on r0-n01", "power-off r0-n02", "power-on r0-n02"]
    assert injector.standing() == []


def test_hardware_faults_change_what_they_are_about_and_leave_the_rest(paper: Paper, injector: Injector) -> None:
    node = root(paper, "r0-n01")
    before = node.hardware()
    with injector.during(BreakFabric(nodes=("r0-n01",), reason="bent")):
        assert node.hardware().fabric == Fabric(FabricState.BROKEN, "bent")
        node.boot("second")
        with injector.during(ChangeClique(nodes=("r0-n01",), clique=7)):
            assert node.hardware().partition == PARTITION.replace(".1", ".7")
        assert node.hardware().fabric.state is FabricState.BROKEN
    assert node.hardware() == structs.replace(before, boot_id="second")


def test_cables_are_cut_at_both_ends(paper: Paper, injector: Injector) -> None:
    def network(node: str) -> object:
        return json.loads((paper.places.node(node) / "network.json").read_text())

    with injector.during(DropTraffic(between=("r0-n00", "r0-n02"))):
        assert network("r0-n00") == {"127.200.0.12": "drop"}
        assert network("r0-n02") == {"127.200.0.10": "drop"}
    assert network("r0-n00") == network("r0-n02") == {}


def test_a_reloaded_driver_has_its_new_major_and_version(paper: Paper, injector: Injector) -> None:
    injector.begin(ReloadDriver(nodes=("r0-n01",), major=241, version="590.1"))
    node = root(paper, "r0-n01")
    assert "241 nvidia-caps-imex-channels" in (node.path / "proc/devices").read_text()
    assert node.hardware().driver_version == "590.1"
    assert paper.requests == ["kill nvidia-imex r0-n01"]


def test_bad_input_changes_nothing(paper: Paper, injector: Injector) -> None:
    with pytest.raises(Misconfigured, match=r"no node 'r9-n00' in this cluster.* at `\$.nodes\[1\]`"):
        injector.begin(KillNode(nodes=("r0-n00", "r9-n00")))
    assert (paper.requests, injector.standing()) == ([], [])


def test_a_fault_that_fails_half_way_is_taken_back_as_a_whole(paper: Paper, injector: Injector) -> None:
    paper.refused.add("power-off r0-n01")
    with pytest.raises(Rejected, match="can't power-off r0-n01"):
        injector.begin(KillNode(nodes=("*",)))
    assert "power-on r0-n00" in paper.requests
    assert injector.standing() == []


def test_an_undo_that_fails_can_be_tried_again(paper: Paper, injector: Injector) -> None:
    standing = injector.begin(KillNode(nodes=("r0-n01",)))
    assert standing is not None
    paper.refused.add("power-on r0-n01")
    with pytest.raises(Rejected, match="can't power-on"):
        injector.undo(standing.id)
    paper.refused.clear()
    assert injector.undo(standing.id) == standing
    with pytest.raises(Rejected, match="no fault 1 stands"):
        injector.undo(standing.id)


def test_numbers_are_never_given_twice(injector: Injector) -> None:
    first, second = (injector.begin(KillNode(nodes=(f"r0-n0{number}",))) for number in range(2))
    assert first
    assert second
    injector.undo(second.id)
    third = injector.begin(KillNode(nodes=("r0-n02",)))
    assert third is not None
    assert [first.id, second.id, third.id] == [1, 2, 3]
