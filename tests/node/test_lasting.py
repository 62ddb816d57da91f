"""Facts that count only after they have lasted: members out of reach, and a membership that was lost."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.nvlinknode import ImexState, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import MemberState, NVLinkPartition
from imex_dra.base.clock import Clock
from imex_dra.daemon.state import DaemonState
from imex_dra.imex.memberlist import Leave, MemberList
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Snapshot
from imex_dra.node.lasting import (
    EXPELLED_AFTER,
    UNREACHABLE_AFTER,
    LastingFacts,
    follow_lasting_facts,
    next_facts,
)
from imex_dra.node.nodestatus import node_status
from imex_dra.node.state import NodeState, member_list_for_daemon
from tests.node.publishing_node import running
from tests.node.snapshots import HEALTHY, OTHER_PARTITION, daemon, healthy_except, member, partition
from tests.virtual import run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALONE = partition(member())
THREE = partition(member(), member("n2", 1), member("n3", 2))


def seen(*observations: tuple[float, Snapshot]) -> LastingFacts:
    facts = LastingFacts()
    for now, snapshot in observations:
        facts = next_facts(facts, snapshot, now)
    return facts


def connected(*indexes: int, among: NVLinkPartition = THREE) -> Snapshot:
    return healthy_except(daemon=daemon(connected=indexes), watched_partition=among)


def test_a_member_is_unreachable_after_five_seconds_without_a_connection() -> None:
    facts = seen((100, connected(1, 2)), (101, connected(1)), (104, connected(1)))
    assert facts.unreachable(105.9) == ()
    assert facts.next_change(104) == 2
    assert facts.unreachable(106) == ("n3",)
    assert facts.next_change(106) is None


def test_a_connection_in_between_starts_the_time_again() -> None:
    facts = seen((100, connected(1)), (104, connected(1, 2)), (105, connected(1)))
    assert facts.unreachable(109) == ()
    assert facts.unreachable(110) == ("n3",)


@pytest.mark.parametrize(
    "snapshot",
    [
        healthy_except(daemon=daemon(connected=None), watched_partition=THREE),
        healthy_except(daemon=daemon(ImexState.UNAVAILABLE, connected=()), watched_partition=THREE),
        healthy_except(daemon=daemon(connected=(), partition=OTHER_PARTITION), watched_partition=THREE),
        healthy_except(daemon=daemon(connected=()), watched_partition=None),
        connected(among=ALONE),
        connected(among=partition(member(), member("n2", 1, MemberState.LEAVING))),
    ],
    ids=["not known", "not READY", "in another partition", "no partition", "no other member", "leaving"],
)
def test_nobody_is_unreachable_if(snapshot: Snapshot) -> None:
    assert seen((0, snapshot)).unreachable(1000) == ()


@pytest.mark.parametrize("state", [MemberState.READY, MemberState.UNKNOWN, MemberState.SUSPENDED])
def test_a_member_that_should_run_or_does_not_report_is_listed(state: MemberState) -> None:
    facts = seen((0, connected(among=partition(member(), member("n2", 1, state)))))
    assert facts.unreachable(5) == ("n2",)


@pytest.mark.parametrize("state", [MemberState.NOT_READY, MemberState.JOINING])
def test_a_member_that_says_itself_that_it_does_not_run_is_listed_only_after_it_does(state: MemberState) -> None:
    down = connected(among=partition(member(), member("n2", 1, state)))
    back = connected(among=partition(member(), member("n2", 1)))
    assert seen((0, down)).unreachable(1000) == ()
    facts = seen((0, down), (60, back))
    assert (facts.unreachable(64.9), facts.unreachable(65)) == ((), ("n2",))


def writes_for(*history: tuple[float, Snapshot]) -> int:
    """How often a node writes its NVLinkNode while it sees these snapshots; each one lasts until the next."""
    facts, last, writes = LastingFacts(), None, 0
    end = history[-1][0] + 100
    for (at, snapshot), (until, _) in zip(history, [*history[1:], (end, HEALTHY)], strict=True):
        for now in (at, until - 0.001):
            facts = next_facts(facts, snapshot, now)
            seen_now = structs.replace(snapshot, unreachable=facts.unreachable(now))
            status = node_status(seen_now, Checkpoint(), last or NVLinkNodeStatus(), NOW)
            writes += last is not None and status != last
            last = status
    return writes


UP = connected(1, among=partition(member(), member("n2", 1)))
LOST = connected(among=partition(member(), member("n2", 1)))
DOWN = connected(among=partition(member(), member("n2", 1, MemberState.NOT_READY)))


@pytest.mark.parametrize(
    ("history", "writes"),
    [
        ([(0, UP), (10, LOST), (14.9, UP)], 0),
        ([(0, UP), (10, LOST), (11, DOWN), (60, LOST), (64, UP)], 0),
        ([(0, UP), (10, LOST), (60, UP)], 2),
        ([(0, UP), (10, LOST), (20, DOWN), (60, LOST), (64, UP)], 2),
    ],
    ids=["back within 5 s", "it reports that it is down", "no node reports that it is down", "it reports it late"],
)
def test_the_restart_of_another_daemon_costs_no_write_if_it_is_short_or_reported(
    history: list[tuple[float, Snapshot]], writes: int
) -> None:
    assert writes_for(*history) == writes


def without_node(generation: int = 6, **changes: Any) -> NVLinkPartition:
    others = partition(member("n2", 1))
    return structs.replace(others, status=structs.replace(others.status, generation=generation, **changes))


EXPELLED = healthy_except(watched_partition=without_node())


def test_a_node_is_expelled_after_ten_seconds_without_membership() -> None:
    facts = seen((100, HEALTHY), (101, EXPELLED), (105, EXPELLED))
    assert (facts.expelled(110.9), facts.expelled(111)) == (False, True)
    assert not seen((100, EXPELLED), (105, HEALTHY), (106, EXPELLED)).expelled(115)


def test_a_leaving_member_is_expelled() -> None:
    leaving = partition(member(state=MemberState.LEAVING), member("n2", 1))
    leaving = structs.replace(leaving, status=structs.replace(leaving.status, generation=6))
    assert seen((0, healthy_except(watched_partition=leaving))).expelled(10)


@pytest.mark.parametrize(
    "snapshot",
    [
        HEALTHY,
        healthy_except(watched_partition=None),
        healthy_except(watched_partition=partition(member("n2", 1), name=OTHER_PARTITION)),
        healthy_except(watched_partition=without_node(generation=5)),
        healthy_except(watched_partition=without_node(generation=0, members=())),
        healthy_except(watched_partition=without_node(pending_reports=("n2",))),
        healthy_except(watched_partition=without_node(), daemon=daemon(partition=OTHER_PARTITION)),
        healthy_except(watched_partition=without_node(), daemon=DaemonState()),
    ],
    ids=[
        "it is a member",
        "the partition is missing",
        "the watch delivers another partition",
        "the daemon has the current list",
        "the partition is new and empty",
        "the partition is being recovered",
        "the daemon runs elsewhere",
        "the daemon does not run",
    ],
)
def test_a_node_is_not_expelled_if(snapshot: Snapshot) -> None:
    assert not seen((0, snapshot)).expelled(1000)


def test_the_daemon_of_an_expelled_node_must_stop() -> None:
    expelled = structs.replace(EXPELLED, expelled=True)
    assert member_list_for_daemon(expelled) == Leave("")
    member_list = member_list_for_daemon(structs.replace(expelled, watched_partition=THREE, expelled=False))
    assert isinstance(member_list, MemberList)
    assert member_list.own_index == 0


SNAPSHOTS = st.sampled_from([HEALTHY, connected(1, 2), connected(1), connected(), EXPELLED])


@given(history=st.lists(st.tuples(st.sampled_from([0.1, 1.0, 4.9, 5.0, 9.9, 10.0]), SNAPSHOTS), max_size=20))
def test_a_fact_counts_exactly_as_long_as_it_says(history: list[tuple[float, Snapshot]]) -> None:
    """Whatever happened before, `next_change` names the moment at which the next fact begins to count."""
    facts, now = LastingFacts(), 0.0
    for duration, snapshot in history:
        facts = next_facts(facts, snapshot, now)
        again = facts.next_change(now)
        if again is not None:
            assert 0 < again <= max(UNREACHABLE_AFTER, EXPELLED_AFTER) + 1e-6
            before = now + again - 1e-6
            assert (facts.unreachable(before), facts.expelled(before)) == (
                facts.unreachable(now),
                facts.expelled(now),
            )
        now += duration


def test_the_snapshot_follows_without_another_event() -> None:
    async def story() -> None:
        state = NodeState("n1")
        fields = structs.asdict(connected(1))
        state.update(**{name: fields[name] for name in ("partition_id", "daemon", "watched_partition")})
        async with running(follow_lasting_facts(state, Clock())):
            for pause in (4.9, 0.2):
                await asyncio.sleep(pause)
                seen_later.append(state.snapshot.unreachable)
            state.update(daemon=daemon(connected=(1, 2)))
            await asyncio.sleep(0.1)
            seen_later.append(state.snapshot.unreachable)

    seen_later: list[tuple[str, ...]] = []
    run(story())
    assert seen_later == [(), ("n3",), ()]
