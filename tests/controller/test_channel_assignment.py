"""Channel assignment against a model: whatever is requested and released, no channel has two ComputeDomains."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import structs

from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.controller.channels import ChannelDemand, ChannelPlan, plan_channels

START = datetime(2026, 1, 1, tzinfo=UTC)
DOMAINS = st.sampled_from("abcdefgh")


def domain(uid: str) -> DomainReference:
    return DomainReference("team", f"job-{uid}", uid)


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, domain(uid), assigned_at="2026-01-01T00:00:00Z")


def plan(
    current: tuple[ChannelAssignment, ...] = (),
    demand: str = "",
    *,
    released: str = "",
    channel_count: int = 2048,
    now: datetime = START,
) -> ChannelPlan:
    return plan_channels(
        current,
        [ChannelDemand(domain(uid)) for uid in demand],
        released_domains=set(released),
        channel_count=channel_count,
        now=now,
    )


class ChannelsMachine(RuleBasedStateMachine):
    """The channels of one partition. The number of channels changes as nodes come and go."""

    @initialize(channels=st.sets(st.integers(0, 7), max_size=4))
    def start(self, channels: set[int]) -> None:
        self.entries = tuple(entry(channel, f"old-{channel}") for channel in channels)
        self.now = START

    @rule(
        requests=st.sets(st.tuples(DOMAINS, st.booleans())),
        released=st.sets(DOMAINS),
        refused=st.sets(DOMAINS),
        channel_count=st.integers(0, 7),
    )
    def plan(
        self, requests: set[tuple[str, bool]], released: set[str], refused: set[str], channel_count: int
    ) -> None:
        self.now += timedelta(seconds=1)
        before = self.entries
        demand = [ChannelDemand(domain(uid), all_channels) for uid, all_channels in sorted(requests)]

        def plan(entries: tuple[ChannelAssignment, ...], now: datetime, last_channel: int = 0) -> ChannelPlan:
            return plan_channels(
                entries,
                demand,
                released_domains=released,
                refused_domains=refused,
                channel_count=channel_count,
                now=now,
                last_channel=last_channel,
            )

        planned = plan(before, self.now)
        self.check_kept_entries(before, planned, released)
        self.check_new_channels(planned, channel_count)
        self.check_all_channels(before, planned, demand, refused)
        self.check_unmet_demand(planned, {uid for uid, _ in requests} - released, channel_count)
        again = plan(planned.assignments, START, planned.last_channel)
        assert again == ChannelPlan(planned.assignments, planned.last_channel, (), planned.unmet_demand)
        self.entries = planned.assignments

    def check_kept_entries(
        self, before: tuple[ChannelAssignment, ...], planned: ChannelPlan, released: set[str]
    ) -> None:
        """An entry keeps its channel and its ComputeDomain, and is released only on request."""
        for old, new in zip(before, planned.assignments, strict=False):
            assert (old.channel, old.compute_domain, old.assigned_at) == (
                new.channel,
                new.compute_domain,
                new.assigned_at,
            )
            is_released = old.state is ChannelState.RELEASED or old.compute_domain.uid in released
            assert (new.state is ChannelState.RELEASED) == is_released
            assert bool(new.released_at) == is_released
            if old.state is ChannelState.RELEASED:
                assert new == old
        assert planned.assignments[len(before) :] == planned.assigned

    def check_new_channels(self, planned: ChannelPlan, channel_count: int) -> None:
        channels = [entry.channel for entry in planned.assignments]
        assert len(channels) == len(set(channels)), "a channel was assigned twice"
        for new in planned.assigned:
            assert 1 <= new.channel < channel_count

    def check_all_channels(
        self,
        before: tuple[ChannelAssignment, ...],
        planned: ChannelPlan,
        demand: list[ChannelDemand],
        refused: set[str],
    ) -> None:
        """Only a ComputeDomain that requests all channels, or did, and is not refused may open them."""
        had = {e.compute_domain.uid for e in before if e.all_channels and e.state is ChannelState.ASSIGNED}
        for new in planned.assignments:
            if new.all_channels and new.state is ChannelState.ASSIGNED:
                uid = new.compute_domain.uid
                requests = [one.all_channels for one in demand if one.domain.uid == uid]
                assert uid not in refused
                assert all(requests) if requests else uid in had

    def check_unmet_demand(self, planned: ChannelPlan, requesting: set[str], channel_count: int) -> None:
        """Demand is unmet only if every channel is taken."""
        served = [e.compute_domain.uid for e in planned.assignments if e.state is ChannelState.ASSIGNED]
        assert len(served) == len(set(served)), "a ComputeDomain has two channels"
        assert {reference.uid for reference in planned.unmet_demand} == requesting - set(served)
        if planned.unmet_demand:
            assert set(range(1, channel_count)) <= {entry.channel for entry in planned.assignments}


TestChannels = ChannelsMachine.TestCase
TestChannels.settings = settings(max_examples=60, stateful_step_count=15)


def test_the_permission_to_open_all_channels_follows_the_namespace() -> None:
    def plan_all(*current: ChannelAssignment, refused: str = "", requests: str = "a") -> ChannelAssignment:
        (only,) = plan_channels(
            current,
            [ChannelDemand(domain(uid), all_channels=True) for uid in requests],
            released_domains=set(),
            refused_domains=set(refused),
            channel_count=9,
            now=START,
        ).assignments
        return only

    allowed = plan_all()
    assert allowed.all_channels
    refused = plan_all(allowed, refused="a", requests="")
    assert refused == structs.replace(allowed, all_channels=False)
    assert plan_all(refused) == allowed


@given(demand=st.permutations("abcd"))
def test_the_order_of_the_demand_does_not_matter(demand: list[str]) -> None:
    assert plan(demand="".join(demand)) == plan(demand="abcd")


def test_the_first_assigned_channel_is_1_because_legacy_setups_give_channel_0_to_every_container() -> None:
    (assigned,) = plan(demand="a").assigned
    assert assigned == entry(1, "a")


def test_a_released_channel_keeps_the_time_of_its_release() -> None:
    (released,) = plan((entry(1, "a"),), released="a").assignments
    assert (released.state, released.released_at) == (ChannelState.RELEASED, "2026-01-01T00:00:00Z")
    later = plan((released,), released="a", now=START + timedelta(days=1))
    assert later.assignments == (released,)


def test_channels_are_assigned_round_robin() -> None:
    current = (entry(1, "a"), entry(4, "b"))
    assert [e.channel for e in plan(current, "cde", channel_count=7).assigned] == [5, 6, 2]


@pytest.mark.parametrize(("channel_count", "served"), [(0, ""), (1, ""), (2, "a"), (3, "ab"), (4, "abc")])
def test_every_channel_except_0_can_be_assigned(channel_count: int, served: str) -> None:
    planned = plan(demand="abc", channel_count=channel_count)
    assert "".join(e.compute_domain.uid for e in planned.assigned) == served
    assert "".join(reference.uid for reference in planned.unmet_demand) == "abc"[len(served) :]


def test_a_released_channel_is_not_assigned_even_if_no_other_is_free() -> None:
    current = (entry(1, "a"), entry(2, "b", ChannelState.RELEASED))
    planned = plan(current, "c", channel_count=3)
    assert planned.assigned == ()
    assert planned.unmet_demand == (domain("c"),)


def test_a_smaller_channel_count_does_not_remove_an_assignment() -> None:
    planned = plan((entry(5, "a"),), "ab", channel_count=4)
    assert [(e.channel, e.compute_domain.uid) for e in planned.assignments] == [(5, "a"), (1, "b")]


def test_a_released_compute_domain_gets_no_channel_although_a_claim_remains() -> None:
    planned = plan((entry(1, "a"),), "a", released="a")
    assert (planned.assigned, planned.unmet_demand) == ((), ())


@given(
    demand=st.sets(st.tuples(st.sampled_from(["red", "blue"]), DOMAINS), max_size=10),
    current=st.lists(st.sampled_from(["red", "blue"]), max_size=4),
    limit=st.integers(0, 4),
)
def test_a_namespace_gets_no_more_channels_than_its_limit_and_does_not_affect_others(
    demand: set[tuple[str, str]], current: list[str], limit: int
) -> None:
    entries = tuple(
        ChannelAssignment(
            number, ChannelState.ASSIGNED, DomainReference(namespace, "old", f"{number}"), assigned_at=""
        )
        for number, namespace in enumerate(current, start=1)
    )
    references = {DomainReference(namespace, uid, f"{namespace}-{uid}") for namespace, uid in demand}
    planned = plan_channels(
        entries,
        [ChannelDemand(reference) for reference in references],
        released_domains=set(),
        channel_count=2048,
        now=START,
        max_per_namespace=limit,
    )
    served = {entry.compute_domain for entry in planned.assigned}
    assert served | set(planned.over_limit) == references
    assert not served & set(planned.over_limit)
    for namespace in ("red", "blue"):
        wanted = sum(reference.namespace == namespace for reference in references)
        free = max(0, limit - current.count(namespace)) if limit else wanted
        assert sum(reference.namespace == namespace for reference in served) == min(wanted, free)


def test_a_released_channel_makes_room_below_the_limit_of_its_namespace() -> None:
    planned = plan_channels(
        (entry(1, "a"), entry(2, "b", ChannelState.RELEASED)),
        [ChannelDemand(domain("c"))],
        released_domains={"a"},
        channel_count=2048,
        now=START,
        max_per_namespace=1,
    )
    assert [assigned.compute_domain.uid for assigned in planned.assigned] == ["c"]
