"""Hosts manage the IMEX daemons: whose node list counts, who may join, and with which index."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import HostNodeList, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import MemberState, NVLinkPartitionStatus
from imex_dra.api.reasons import Reason
from imex_dra.controller.nodelists import common_digest, list_refusal, with_host_indexes
from imex_dra.controller.partitionplan import PartitionInputs, plan_partition
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node


def host_node(node: str, index: int = 0, digest: str = "one", **facts: Any) -> NVLinkNode:
    facts = {"state": ImexState.READY, "imex_partition": HERE} | facts
    report = nvlink_node(node, index=index, **facts)
    status = structs.replace(report.status, host_node_list=HostNodeList(digest, 4 if digest else 0))
    return structs.replace(report, status=status)


def by_name(*reports: NVLinkNode) -> dict[str, NVLinkNode]:
    return {report.metadata.name: report for report in reports}


@pytest.mark.parametrize(
    ("before", "reports", "digest"),
    [
        ("", [host_node("a"), host_node("b", 1), host_node("c", 2, "two")], "one"),
        ("two", [host_node("a"), host_node("b", 1), host_node("c", 2, "two")], "one"),
        ("two", [host_node("a"), host_node("b", 1, "two")], "two"),
        ("one", [host_node("a"), host_node("b", 1, "two")], "one"),
        ("one", [host_node("a", digest="two"), host_node("b", 1, ""), host_node("c", 2, "")], "two"),
        ("one", [host_node("a", digest=""), host_node("b", 1, "")], "one"),
        ("", [nvlink_node("a"), nvlink_node("b"), host_node("c", 2)], ""),
        ("one", [host_node("a"), host_node("b", 1, "two", partition=ELSEWHERE)], "one"),
        ("one", [], "one"),
    ],
    ids=[
        "majority",
        "majority changes",
        "tie",
        "tie, the other way round",
        "unreadable lists do not count",
        "no list can be read",
        "the driver manages most of them",
        "other partition",
        "no reports",
    ],
)
def test_the_list_of_most_members_counts(before: str, reports: list[NVLinkNode], digest: str) -> None:
    members = [member(report.metadata.name, index) for index, report in enumerate(reports)]
    assert common_digest(HERE, before, members, by_name(*reports)) == digest


def test_nodes_outside_have_no_say_while_there_are_members() -> None:
    reports = by_name(host_node("a"), host_node("x", 1, "two"), host_node("y", 2, "two"))
    assert common_digest(HERE, "", [member("a", 0)], reports) == "one"
    assert common_digest(HERE, "", [], reports) == "two"


@pytest.mark.parametrize(
    ("report", "reason", "words"),
    [
        (host_node("n", 2), None, ""),
        (host_node("n", 2, "two"), Reason.NODE_LISTS_DIFFER, "install the same nodes_config.cfg"),
        (nvlink_node("n"), Reason.NODE_LISTS_DIFFER, "has the node list of imex-dra"),
        (host_node("n", -1), Reason.HOST_INDEX_UNKNOWN, "exactly one entry of the list"),
        (host_node("n", -1, state=ImexState.UNAVAILABLE), Reason.HOST_DAEMON_NOT_READY, "is UNAVAILABLE"),
        (host_node("n", 1, digest=""), Reason.HOST_INDEX_UNKNOWN, "exactly one entry of the list"),
        (host_node("n", 0), Reason.HOST_INDEX_TAKEN, "index 0, which is that of member a"),
        (host_node("n", 4), Reason.HOST_INDEX_TOO_HIGH, "was created for 4 nodes; drain the machine"),
    ],
)
def test_what_keeps_a_node_out(report: NVLinkNode, reason: Reason | None, words: str) -> None:
    refusal = list_refusal(HERE, report, "one", [member("a", 0), member("b", 1)], 4)
    assert (refusal.reason if refusal else None) == reason
    assert words in (refusal.message() if refusal else "")


def test_a_partition_of_the_driver_refuses_a_node_that_its_host_manages() -> None:
    refusal = list_refusal(HERE, host_node("n", 2), "", [member("a", 0)], 4)
    assert refusal is not None
    assert "has the node list of the host's nvidia-imex" in refusal.message()


def test_hosts_that_exchange_their_indexes_get_them_together() -> None:
    before = [member("a", 0), member("b", 1), member("c", 2)]
    reports = by_name(host_node("a", 1), host_node("b", 0), host_node("c", 2))
    assert [m.index for m in with_host_indexes(before, reports, "one", 4)] == [1, 0, 2]
    in_the_middle = by_name(host_node("a", 1), host_node("b", 1), host_node("c", 2))
    assert with_host_indexes(before, in_the_middle, "one", 4) == before
    other_list = by_name(host_node("a", 1, "two"), host_node("b", 0, "two"), host_node("c", 2))
    assert with_host_indexes(before, other_list, "one", 4) == before
    assert with_host_indexes(before, by_name(host_node("a", 9)), "one", 4) == before


def planned(status: NVLinkPartitionStatus, *reports: NVLinkNode) -> NVLinkPartitionStatus:
    return plan_partition(
        PartitionInputs(HERE, status, 4, by_name(*reports), {report.metadata.name for report in reports}), NOW
    ).status


def states(status: NVLinkPartitionStatus) -> dict[str, tuple[int, MemberState]]:
    return {found.node: (found.index, found.state) for found in status.members}


def joined(*reports: NVLinkNode) -> NVLinkPartitionStatus:
    """After the first plan has created the status, the nodes have acknowledged its epoch."""
    status = planned(NVLinkPartitionStatus())
    return planned(status, *(_acknowledging(report, status) for report in reports))


def _acknowledging(report: NVLinkNode, status: NVLinkPartitionStatus, applied: int = 0) -> NVLinkNode:
    facts = structs.replace(report.status, acknowledged_epoch=status.epoch, applied_generation=applied)
    return structs.replace(report, status=facts)


def test_members_have_the_indexes_of_their_hosts() -> None:
    status = joined(host_node("a", 3), host_node("b", 1))
    assert states(status) == {"a": (3, MemberState.JOINING), "b": (1, MemberState.JOINING)}
    assert status.node_list_digest == "one"
    reports = [_acknowledging(report, status) for report in (host_node("a", 3), host_node("b", 1))]
    status = planned(status, *reports)
    assert states(status) == {"a": (3, MemberState.READY), "b": (1, MemberState.READY)}


def test_of_two_nodes_with_one_index_only_one_joins_and_the_other_is_named() -> None:
    reports = host_node("a", 3), host_node("b", 3)
    status = joined(*reports)
    assert states(status) == {"a": (3, MemberState.JOINING)}
    status = planned(status, *(_acknowledging(report, status) for report in reports))
    (admitted,) = [found for found in status.conditions if found.type == "NodesAdmitted"]
    assert (admitted.status, admitted.reason) == ("False", "HostIndexTaken")


def test_a_member_whose_host_has_another_list_is_not_ready_and_the_others_are() -> None:
    reports = host_node("a", 0), host_node("b", 1), host_node("c", 2)
    status = joined(*reports)
    status = planned(status, *(_acknowledging(report, status) for report in reports))
    changed = host_node("a", 0), host_node("b", 1, "two"), host_node("c", 2)
    status = planned(status, *(_acknowledging(report, status) for report in changed))
    assert {node: state for node, (_, state) in states(status).items()} == {
        "a": MemberState.READY,
        "b": MemberState.NOT_READY,
        "c": MemberState.READY,
    }


def test_a_deleted_node_leaves_only_when_no_daemon_of_a_host_is_connected_to_it() -> None:
    """Its daemon may still run: it is in the node lists of the hosts."""
    reports = host_node("a", 0), host_node("b", 1), host_node("c", 2)
    status = joined(*reports)
    applied = status.generation
    status = planned(status, *(_acknowledging(report, status, applied) for report in reports))
    rest = reports[:2]
    status = planned(status, *(_acknowledging(report, status, applied) for report in rest))
    assert states(status)["c"] == (2, MemberState.LEAVING)
    assert status.generation == applied + 1
    # One of them is still connected to it, and has not confirmed the list.
    half = [_acknowledging(rest[0], status, applied + 1), _acknowledging(rest[1], status, applied)]
    assert "c" in states(planned(status, *half))
    assert "c" not in states(planned(status, *(_acknowledging(report, status, applied + 1) for report in rest)))


def test_no_channel_is_assigned_before_the_hosts_have_confirmed_the_member_list() -> None:
    reports = host_node("a", 0), host_node("b", 1)
    status = joined(*reports)
    assert status.required_generation == status.generation
    confirmed = planned(status, *(_acknowledging(report, status, status.generation) for report in reports))
    assert confirmed.required_generation == 0
