"""Which members are alive, which are suspended, and how a suspended one returns."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nvlinknode import ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.api.views import Node, NodeCondition, NodeStatus
from imex_dra.controller.caches import is_node_ready
from imex_dra.controller.liveness import Liveness
from imex_dra.controller.membership import MemberInputs, MemberPlan, plan_members
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node, undated

THEN = "2025-12-31T23:50:00Z"
"""Ten minutes before NOW."""
LATER = "2025-12-31T23:50:01Z"
UNKNOWN, SUSPENDED, READY = MemberState.UNKNOWN, MemberState.SUSPENDED, MemberState.READY


def ready(node: str, index: int, applied: int = 5, **more: Any) -> NVLinkNode:
    return nvlink_node(node, index=index, state=ImexState.READY, applied=applied, imex_partition=HERE, **more)


def plan(
    members: tuple[Member, ...],
    *nvlink_nodes: NVLinkNode,
    not_ready: str = "",
    nodes: str | None = None,
    now: datetime = NOW,
    **more: Any,
) -> dict[str, Member]:
    by_node = {report.metadata.name: report for report in nvlink_nodes}
    existing = by_node.keys() if nodes is None else set(nodes)
    inputs = MemberInputs(HERE, 4, by_node, existing, Liveness(now, set(not_ready)), **more)
    return {m.node: m for m in plan_members(MemberPlan(members, 5), inputs).members}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), True),
        ((NodeCondition("Ready", "True"),), True),
        ((NodeCondition("Ready", "False"),), False),
        ((NodeCondition("Ready", "Unknown"),), False),
        ((NodeCondition("DiskPressure", "Unknown"),), True),
    ],
)
def test_a_node_is_ready_unless_its_ready_condition_says_otherwise(
    conditions: tuple[NodeCondition, ...], expected: bool
) -> None:
    assert is_node_ready(Node(ObjectMeta(name="a"), NodeStatus(conditions))) is expected


def test_a_member_whose_node_is_not_ready_is_unknown_whatever_its_last_report_says() -> None:
    found = plan((member("a", 0), member("b", 1)), ready("a", 0), ready("b", 1), not_ready="b")
    assert found["b"].state is UNKNOWN
    assert found["a"].state is READY
    back = plan(tuple(found.values()), ready("a", 0), ready("b", 1))
    assert back["b"].state is READY


def test_since_changes_only_with_the_state() -> None:
    before = (member("a", 0, since=THEN), member("b", 1, since=THEN))
    found = plan(before, ready("a", 0), ready("b", 1), not_ready="b")
    assert found["a"].since == THEN
    assert found["b"].since == "2026-01-01T00:00:00Z"
    again = plan(
        tuple(found.values()), ready("a", 0), ready("b", 1), not_ready="b", now=NOW + timedelta(minutes=1)
    )
    assert again["b"].since == found["b"].since


ONE_AWAY = (member("a", 0), member("b", 1), member("c", 2, UNKNOWN, since=THEN))


@pytest.mark.parametrize(
    ("members", "a", "b", "state"),
    [
        (ONE_AWAY, ("c",), ("c",), SUSPENDED),
        (ONE_AWAY, ("c",), (), UNKNOWN),
        ((*ONE_AWAY[:2], member("c", 2, UNKNOWN, since=LATER)), ("c",), ("c",), UNKNOWN),
        ((*ONE_AWAY[:2], member("c", 2, since=THEN)), ("c",), ("c",), UNKNOWN),
    ],
    ids=["all find it unreachable", "one reaches it", "not long enough", "was ready until now"],
)
def test_a_member_is_suspended_after_a_while_if_every_live_member_finds_it_unreachable(
    members: tuple[Member, ...], a: tuple[str, ...], b: tuple[str, ...], state: MemberState
) -> None:
    reports = ready("a", 0, unreachable=a), ready("b", 1, unreachable=b), ready("c", 2)
    found = plan(members, *reports, not_ready="c")
    assert found["c"].state is state
    assert (found["c"].index, found["c"].address) == (2, "10.0.0.c")


def test_a_member_that_is_not_alive_is_no_witness_and_one_witness_is_needed() -> None:
    witness, silent = ready("a", 0, unreachable=("c",)), ready("b", 1)
    assert plan(ONE_AWAY, witness, silent, ready("c", 2), not_ready="bc")["c"].state is SUSPENDED
    assert plan(ONE_AWAY, witness, silent, ready("c", 2), not_ready="abc")["c"].state is UNKNOWN


def test_the_plan_is_made_again_when_a_member_may_be_suspended() -> None:
    liveness = Liveness(NOW)
    members = [member("a", 0, UNKNOWN, since=LATER), member("b", 1, UNKNOWN, since="2025-12-31T23:59:00Z")]
    assert liveness.next_suspension(members) == 1.0
    assert liveness.next_suspension([member("a", 0, UNKNOWN, since=THEN)]) is None
    assert liveness.next_suspension([member("a", 0, since=THEN), member("b", 1, SUSPENDED, since=THEN)]) is None


AWAY = (member("a", 0), member("b", 1, SUSPENDED, since=THEN))


@pytest.mark.parametrize(
    ("report", "not_ready", "admissible", "state"),
    [
        (ready("b", 1), "", True, MemberState.JOINING),
        (ready("b", 1), "b", True, SUSPENDED),
        (ready("b", 1), "", False, SUSPENDED),
        (ready("b", 1, applied=4), "", True, SUSPENDED),
        (nvlink_node("b", applied=5), "", True, SUSPENDED),
        (nvlink_node("b", partition=""), "", True, SUSPENDED),
        (nvlink_node("b", partition=ELSEWHERE), "", True, MemberState.LEAVING),
    ],
    ids=[
        "returns",
        "its Node is not Ready",
        "not admissible",
        "its daemon has an older list",
        "its daemon does not run",
        "no report",
        "in another partition",
    ],
)
def test_a_suspended_member_returns_only_through_admission_with_the_current_list(
    report: NVLinkNode, not_ready: str, admissible: bool, state: MemberState
) -> None:
    found = plan(AWAY, ready("a", 0), report, not_ready=not_ready, is_admissible=lambda node: admissible)
    assert found["b"].state is state
    assert (found["b"].index, found["b"].address) == (1, "10.0.0.b")


def test_a_suspended_member_leaves_when_its_node_is_deleted() -> None:
    found = plan(AWAY, ready("a", 0), nodes="a")
    assert undated(found["b"]) == member("b", 1, MemberState.LEAVING, left=6)


def test_a_leaving_member_does_not_wait_for_a_suspended_one() -> None:
    leaving = member("c", 2, MemberState.LEAVING, left=5)
    old = ready("b", 1, applied=4)
    assert "c" not in plan((*AWAY, leaving), ready("a", 0), old, nodes="ab", not_ready="b")
    unknown = member("b", 1, UNKNOWN, since=LATER)
    assert "c" in plan((AWAY[0], unknown, leaving), ready("a", 0), old, nodes="ab", not_ready="b")


@pytest.mark.parametrize(("admissible", "state"), [(True, MemberState.JOINING), (False, MemberState.LEAVING)])
def test_when_a_recovering_partition_has_all_reports_what_it_kept_without_proof_is_admitted_or_leaves(
    admissible: bool, state: MemberState
) -> None:
    reports = ready("a", 0), ready("b", 1, applied=3)
    found = plan(AWAY, *reports, recovered=True, is_admissible=lambda node: admissible)
    assert found["b"].state is state
    assert found["a"].state is READY
