"""When seats are offered: at once where that is safe, and never so quickly that a slice blinks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.meta import OwnerReference
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import MemberState
from imex_dra.node.readiness import Knowledge
from imex_dra.node.seats import (
    RESTORE_AFTER,
    SEATS,
    WITHDRAW_AFTER,
    Offer,
    Seating,
    next_seating,
    seats_slice,
)
from tests.node.facts import HEALTHY, PARTITION, but, daemon, member, partition, reading

ABLE = HEALTHY
LONELY = but(daemon=daemon(connected=()))
UNABLE = but(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
PENDING = but(reading=reading(FabricState.PENDING))
BROKEN = but(reading=reading(FabricState.BROKEN, "a GPU is gone"))
PLAIN = but(reading=reading(FabricState.NONE), partition=None, daemon=daemon(ImexState.UNAVAILABLE))

NEVER, OFFERED, WITHDRAWN = Seating(Offer.NEVER), Seating(Offer.OFFERED), Seating(Offer.WITHDRAWN)


def doubted(offer: Offer, since: float) -> Seating:
    return Seating(offer, since)


@pytest.mark.parametrize(
    ("before", "known", "after", "again"),
    [
        (NEVER, ABLE, OFFERED, None),
        (NEVER, PLAIN, OFFERED, None),
        (NEVER, LONELY, NEVER, None),
        (NEVER, UNABLE, NEVER, None),
        (NEVER, PENDING, NEVER, None),
        (NEVER, BROKEN, NEVER, None),
        (OFFERED, ABLE, OFFERED, None),
        (OFFERED, LONELY, OFFERED, None),
        (OFFERED, UNABLE, doubted(Offer.OFFERED, 100), 15),
        (OFFERED, PENDING, doubted(Offer.OFFERED, 100), 15),
        (doubted(Offer.OFFERED, 90), UNABLE, doubted(Offer.OFFERED, 90), 5),
        (doubted(Offer.OFFERED, 85), UNABLE, WITHDRAWN, None),
        (doubted(Offer.OFFERED, 86), ABLE, OFFERED, None),
        (OFFERED, BROKEN, WITHDRAWN, None),
        (doubted(Offer.OFFERED, 99), BROKEN, WITHDRAWN, None),
        (WITHDRAWN, UNABLE, WITHDRAWN, None),
        (WITHDRAWN, ABLE, doubted(Offer.WITHDRAWN, 100), 5),
        (WITHDRAWN, LONELY, doubted(Offer.WITHDRAWN, 100), 5),
        (doubted(Offer.WITHDRAWN, 96), ABLE, doubted(Offer.WITHDRAWN, 96), 1),
        (doubted(Offer.WITHDRAWN, 95), ABLE, OFFERED, None),
        (doubted(Offer.WITHDRAWN, 96), UNABLE, WITHDRAWN, None),
        (doubted(Offer.WITHDRAWN, 96), BROKEN, WITHDRAWN, None),
    ],
)
def test_at_second_100(before: Seating, known: Knowledge, after: Seating, again: float | None) -> None:
    assert next_seating(before, known, 100.0) == (after, again)


@pytest.mark.parametrize(
    ("others", "connected", "offered"),
    [
        ([], (), True),
        ([member("n2", 1)], (), False),
        ([member("n2", 1), member("n3", 2)], (1,), False),
        ([member("n2", 1), member("n3", 2)], (1, 2), True),
        ([member("n2", 1, MemberState.JOINING), member("n3", 2, MemberState.UNKNOWN)], (), True),
    ],
)
def test_the_first_offer_waits_for_connections_with_all_members_that_are_ready(
    others: list[object], connected: tuple[int, ...], offered: bool
) -> None:
    known = but(partition=partition(member(), *others), daemon=daemon(connected=connected))  # type: ignore[arg-type]
    seating, _ = next_seating(NEVER, known, 0.0)
    assert seating.offered is offered


FACTS = st.sampled_from([ABLE, LONELY, UNABLE, PENDING, BROKEN, PLAIN])


@given(history=st.lists(st.tuples(st.sampled_from([0.1, 1.0, 4.9, 5.0, 14.9, 15.0, 60.0]), FACTS), max_size=30))
def test_seats_follow_the_facts_no_sooner_and_no_later_than_they_may(
    history: list[tuple[float, Knowledge]],
) -> None:
    seating, now, able_since, unable_since = NEVER, 0.0, 0.0, 0.0
    was_able = False

    def look(known: Knowledge, at: float) -> float | None:
        nonlocal seating
        before = seating
        seating, again = next_seating(seating, known, at)
        assert again is None or again > 0
        if seating.offered and not before.offered:
            assert able
            assert before.offer is Offer.NEVER or at - able_since >= RESTORE_AFTER - 1e-6
        if before.offered and not seating.offered:
            assert known is BROKEN or at - unable_since >= WITHDRAW_AFTER - 1e-6
        return None if again is None else at + again

    for length, known in history:
        able = known in (ABLE, LONELY, PLAIN)
        if able and not was_able:
            able_since = now
        if was_able and not able:
            unable_since = now
        was_able = able
        due = look(known, now)
        while due is not None and due <= now + length:
            due = look(known, due)
        now += length
        if not able and now - unable_since > WITHDRAW_AFTER + 1e-6:
            assert not seating.offered
        if able and now - able_since > RESTORE_AFTER + 1e-6:
            assert seating.offered or (seating.offer is Offer.NEVER and known is LONELY)


def test_every_seat_has_every_attribute_because_a_selector_on_a_missing_one_stops_scheduling_everywhere() -> None:
    owner = OwnerReference("v1", "Node", "n1", "uid-n1")
    offered = seats_slice(HEALTHY, owner)
    devices = offered.spec.devices
    assert [device.name for device in devices] == [f"channel-{seat}" for seat in range(SEATS)]
    for seat, device in enumerate(devices):
        attributes = {name: value.string or value.integer for name, value in device.attributes.items()}
        assert attributes == {"type": "channel", "id": 0, "seat": seat, "clique": PARTITION, "fabric": "ok"}
    assert offered.spec.node_name == offered.spec.pool.name == "n1"
    assert offered.metadata.owner_references == (owner,)


def test_a_node_without_fabric_has_an_empty_clique() -> None:
    (device, *_) = seats_slice(PLAIN, OwnerReference("v1", "Node", "n1", "uid")).spec.devices
    assert device.attributes["clique"].string == ""
    assert device.attributes["fabric"].string == "none"
