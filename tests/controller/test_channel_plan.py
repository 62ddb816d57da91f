"""Channels against a model: whatever is wanted and released in whatever order, never one number for two."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import structs

from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.controller.channels import Channels, Want, plan_channels

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DOMAINS = st.sampled_from("abcdefgh")


def domain(uid: str) -> DomainReference:
    return DomainReference("team", f"job-{uid}", uid)


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, domain(uid), since="2026-01-01T00:00:00Z")


def plan(
    current: tuple[ChannelAssignment, ...] = (),
    wants: str = "",
    *,
    released: str = "",
    count: int = 2048,
    now: datetime = EPOCH,
) -> Channels:
    return plan_channels(
        current, [Want(domain(uid)) for uid in wants], released=set(released), count=count, now=now
    )


class ChannelsMachine(RuleBasedStateMachine):
    """The life of a partition's channels; the number of channels changes as cards come and go."""

    @initialize(numbers=st.sets(st.integers(0, 7), max_size=4))
    def start(self, numbers: set[int]) -> None:
        self.entries = tuple(entry(number, f"old-{number}") for number in numbers)
        self.now = EPOCH

    @rule(
        wants=st.sets(st.tuples(DOMAINS, st.booleans())),
        gone=st.sets(DOMAINS),
        refused=st.sets(DOMAINS),
        count=st.integers(0, 7),
    )
    def plan(self, wants: set[tuple[str, bool]], gone: set[str], refused: set[str], count: int) -> None:
        self.now += timedelta(seconds=1)
        before = self.entries
        asked = [Want(domain(uid), all_channels) for uid, all_channels in sorted(wants)]
        planned = plan_channels(before, asked, released=gone, refused=refused, count=count, now=self.now)
        self.nobody_moves(before, planned, gone)
        self.fresh_numbers_only(planned, count)
        self.nobody_may_open_all_who_did_not_ask_or_was_refused(before, planned, asked, refused)
        self.who_got_none_could_get_none(planned, {uid for uid, _ in wants} - gone, count)
        again = plan_channels(
            planned.assignments,
            asked,
            released=gone,
            refused=refused,
            count=count,
            now=EPOCH,
            last=planned.last,
        )
        assert again == Channels(planned.assignments, planned.last, (), planned.unserved)
        self.entries = planned.assignments

    def nobody_moves(self, before: tuple[ChannelAssignment, ...], planned: Channels, gone: set[str]) -> None:
        for old, new in zip(before, planned.assignments, strict=False):
            assert (old.channel, old.compute_domain, old.since) == (new.channel, new.compute_domain, new.since)
            resting = old.state is ChannelState.RESTING or old.compute_domain.uid in gone
            assert (new.state is ChannelState.RESTING) == resting
            assert bool(new.released_at) == resting
            if old.state is ChannelState.RESTING:
                assert new == old
        assert planned.assignments[len(before) :] == planned.assigned

    def fresh_numbers_only(self, planned: Channels, count: int) -> None:
        numbers = [entry.channel for entry in planned.assignments]
        assert len(numbers) == len(set(numbers)), "a number was given twice"
        for new in planned.assigned:
            assert 1 <= new.channel < count

    def nobody_may_open_all_who_did_not_ask_or_was_refused(
        self, before: tuple[ChannelAssignment, ...], planned: Channels, asked: list[Want], refused: set[str]
    ) -> None:
        had = {e.compute_domain.uid for e in before if e.all and e.state is ChannelState.ASSIGNED}
        for new in planned.assignments:
            if new.all and new.state is ChannelState.ASSIGNED:
                uid = new.compute_domain.uid
                words = [want.all for want in asked if want.domain.uid == uid]
                assert uid not in refused
                assert all(words) if words else uid in had

    def who_got_none_could_get_none(self, planned: Channels, asked: set[str], count: int) -> None:
        holders = [e.compute_domain.uid for e in planned.assignments if e.state is ChannelState.ASSIGNED]
        assert len(holders) == len(set(holders)), "a ComputeDomain holds two channels"
        assert {reference.uid for reference in planned.unserved} == asked - set(holders)
        if planned.unserved:
            assert set(range(1, count)) <= {entry.channel for entry in planned.assignments}


TestChannels = ChannelsMachine.TestCase
TestChannels.settings = settings(max_examples=60, stateful_step_count=15)


def test_the_right_to_open_all_is_taken_away_and_given_back() -> None:
    (granted,) = plan_channels((), [Want(domain("a"), all=True)], released=set(), count=9, now=EPOCH).assignments
    assert granted.all
    wants = [Want(domain("a"), all=True)]
    (taken,) = plan_channels((granted,), (), released=set(), refused={"a"}, count=9, now=EPOCH).assignments
    assert taken == structs.replace(granted, all=False)
    assert plan_channels((taken,), wants, released=set(), count=9, now=EPOCH).assignments == (granted,)


@given(wants=st.permutations("abcd"))
def test_the_order_of_asking_does_not_matter(wants: list[str]) -> None:
    assert plan(wants="".join(wants)) == plan(wants="abcd")


def test_the_first_channel_is_1_because_0_is_what_legacy_set_ups_hand_to_everybody() -> None:
    (assigned,) = plan(wants="a").assigned
    assert assigned == entry(1, "a")


def test_a_channel_given_back_rests_and_says_since_when() -> None:
    (rested,) = plan((entry(1, "a"),), released="a").assignments
    assert (rested.state, rested.released_at) == (ChannelState.RESTING, "2026-01-01T00:00:00Z")
    later = plan((rested,), released="a", now=EPOCH + timedelta(days=1))
    assert later.assignments == (rested,)


def test_numbers_go_round_before_gaps_are_filled() -> None:
    gap = (entry(1, "a"), entry(4, "b"))
    assert [e.channel for e in plan(gap, "cde", count=7).assigned] == [5, 6, 2]


@pytest.mark.parametrize(("count", "served"), [(0, ""), (1, ""), (2, "a"), (3, "ab"), (4, "abc")])
def test_of_n_channels_all_but_channel_0_can_be_given(count: int, served: str) -> None:
    planned = plan(wants="abc", count=count)
    assert "".join(e.compute_domain.uid for e in planned.assigned) == served
    assert "".join(reference.uid for reference in planned.unserved) == "abc"[len(served) :]


def test_a_resting_number_is_not_given_even_when_nothing_else_is_left() -> None:
    current = (entry(1, "a"), entry(2, "b", ChannelState.RESTING))
    planned = plan(current, "c", count=3)
    assert planned.assigned == ()
    assert planned.unserved == (domain("c"),)


def test_fewer_channels_than_before_take_nothing_away() -> None:
    planned = plan((entry(5, "a"),), "ab", count=4)
    assert [(e.channel, e.compute_domain.uid) for e in planned.assignments] == [(5, "a"), (1, "b")]


def test_who_is_released_and_still_asks_gets_nothing() -> None:
    planned = plan((entry(1, "a"),), "a", released="a")
    assert (planned.assigned, planned.unserved) == ((), ())
