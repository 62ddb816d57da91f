"""When channel devices are published and withdrawn, and what they look like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.meta import OwnerReference
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.node.devices import (
    PUBLISH_AFTER,
    RESTORE_AFTER,
    WITHDRAW_AFTER,
    Publication,
    PublicationState,
    next_publication,
    resource_slice,
)
from imex_dra.node.grant import MAX_CLAIMS, Snapshot
from tests.node.snapshots import HEALTHY, PARTITION, daemon, healthy_except, member, partition, reading

READY = HEALTHY
UNCONNECTED = healthy_except(daemon=daemon(connected=()))
NOT_READY = healthy_except(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
PENDING = healthy_except(reading=reading(FabricState.PENDING))
BROKEN = healthy_except(reading=reading(FabricState.BROKEN, "a GPU is gone"))
NO_FABRIC = healthy_except(
    reading=reading(FabricState.NONE), watched_partition=None, daemon=daemon(ImexState.UNAVAILABLE)
)

NEVER = Publication(PublicationState.NEVER)
PUBLISHED = Publication(PublicationState.PUBLISHED)
WITHDRAWN = Publication(PublicationState.WITHDRAWN)


def published_but_not_ready_since(time: float) -> Publication:
    return Publication(PublicationState.PUBLISHED, time)


def never_but_ready_since(time: float) -> Publication:
    return Publication(PublicationState.NEVER, time)


def withdrawn_but_ready_since(time: float) -> Publication:
    return Publication(PublicationState.WITHDRAWN, time)


@pytest.mark.parametrize(
    ("before", "snapshot", "after", "again"),
    [
        (NEVER, READY, PUBLISHED, None),
        (NEVER, NO_FABRIC, PUBLISHED, None),
        (NEVER, UNCONNECTED, never_but_ready_since(100), 30),
        (never_but_ready_since(75), UNCONNECTED, never_but_ready_since(75), 5),
        (never_but_ready_since(75), READY, PUBLISHED, None),
        (never_but_ready_since(75), NOT_READY, NEVER, None),
        (never_but_ready_since(75), BROKEN, NEVER, None),
        (never_but_ready_since(70), UNCONNECTED, PUBLISHED, None),
        (NEVER, NOT_READY, NEVER, None),
        (NEVER, PENDING, NEVER, None),
        (NEVER, BROKEN, NEVER, None),
        (PUBLISHED, READY, PUBLISHED, None),
        (PUBLISHED, UNCONNECTED, PUBLISHED, None),
        (PUBLISHED, NOT_READY, published_but_not_ready_since(100), 15),
        (PUBLISHED, PENDING, published_but_not_ready_since(100), 15),
        (published_but_not_ready_since(90), NOT_READY, published_but_not_ready_since(90), 5),
        (published_but_not_ready_since(85), NOT_READY, WITHDRAWN, None),
        (published_but_not_ready_since(86), READY, PUBLISHED, None),
        (PUBLISHED, BROKEN, WITHDRAWN, None),
        (published_but_not_ready_since(99), BROKEN, WITHDRAWN, None),
        (WITHDRAWN, NOT_READY, WITHDRAWN, None),
        (WITHDRAWN, READY, withdrawn_but_ready_since(100), 5),
        (WITHDRAWN, UNCONNECTED, withdrawn_but_ready_since(100), 5),
        (withdrawn_but_ready_since(96), READY, withdrawn_but_ready_since(96), 1),
        (withdrawn_but_ready_since(95), READY, PUBLISHED, None),
        (withdrawn_but_ready_since(96), NOT_READY, WITHDRAWN, None),
        (withdrawn_but_ready_since(96), BROKEN, WITHDRAWN, None),
    ],
)
def test_the_publication_at_time_100(
    before: Publication, snapshot: Snapshot, after: Publication, again: float | None
) -> None:
    assert next_publication(before, snapshot, 100.0) == (after, again)


def test_how_long_the_first_publication_waits_is_a_setting() -> None:
    waiting, again = next_publication(NEVER, UNCONNECTED, 100.0, 4.0)
    assert (waiting.published, again) == (False, 4.0)
    assert next_publication(waiting, UNCONNECTED, 104.0, 4.0)[0].published


@pytest.mark.parametrize(
    ("others", "connected", "published"),
    [
        ((), (), True),
        ((), None, False),
        ((member("n2", 1),), (), False),
        ((member("n2", 1), member("n3", 2)), (1,), False),
        ((member("n2", 1), member("n3", 2)), (1, 2), True),
        ((member("n2", 1, MemberState.JOINING), member("n3", 2, MemberState.UNKNOWN)), (), True),
        ((member("n2", 1), member("n3", 2, MemberState.SUSPENDED)), (1,), True),
    ],
)
def test_the_first_publication_waits_for_connections_to_all_ready_members(
    others: tuple[Member, ...], connected: tuple[int, ...] | None, published: bool
) -> None:
    snapshot = healthy_except(watched_partition=partition(member(), *others), daemon=daemon(connected=connected))
    publication, _ = next_publication(NEVER, snapshot, 0.0)
    assert publication.published is published


SNAPSHOTS = st.sampled_from([READY, UNCONNECTED, NOT_READY, PENDING, BROKEN, NO_FABRIC])
DURATIONS = st.sampled_from([0.1, 1.0, 4.9, 5.0, 14.9, 15.0, 60.0])


@given(history=st.lists(st.tuples(DURATIONS, SNAPSHOTS), max_size=30))
def test_devices_are_withdrawn_and_restored_no_sooner_and_no_later_than_the_delays_say(
    history: list[tuple[float, Snapshot]],
) -> None:
    publication, now, ready_since, unready_since = NEVER, 0.0, 0.0, 0.0
    was_ready = False

    def decide(snapshot: Snapshot, at: float) -> float | None:
        nonlocal publication
        before = publication
        publication, again = next_publication(publication, snapshot, at)
        assert again is None or again > 0
        if publication.published and not before.published:
            assert ready
            delay = RESTORE_AFTER
            if before.state is PublicationState.NEVER:
                delay = PUBLISH_AFTER if snapshot is UNCONNECTED else 0.0
            assert at - ready_since >= delay - 1e-6
        if before.published and not publication.published:
            assert snapshot is BROKEN or at - unready_since >= WITHDRAW_AFTER - 1e-6
        return None if again is None else at + again

    for duration, snapshot in history:
        ready = snapshot in (READY, UNCONNECTED, NO_FABRIC)
        if ready and not was_ready:
            ready_since = now
        if was_ready and not ready:
            unready_since = now
        was_ready = ready
        due = decide(snapshot, now)
        while due is not None and due <= now + duration:
            due = decide(snapshot, due)
        now += duration
        if not ready and now - unready_since > WITHDRAW_AFTER + 1e-6:
            assert not publication.published
        waits = publication.state is PublicationState.NEVER and snapshot is UNCONNECTED
        if ready and now - ready_since > (PUBLISH_AFTER if waits else RESTORE_AFTER) + 1e-6:
            assert publication.published


def test_every_device_has_every_attribute() -> None:
    """A selector on a missing attribute would fail scheduling on all nodes."""
    owner = OwnerReference("v1", "Node", "n1", "uid-n1")
    published = resource_slice(HEALTHY, owner)
    devices = published.spec.devices
    assert [device.name for device in devices] == [f"channel-{number}" for number in range(MAX_CLAIMS)]
    for device in devices:
        attributes = {name: value.string or value.integer for name, value in device.attributes.items()}
        assert attributes == {"type": "channel", "id": 0, "clique": PARTITION, "fabric": "ok"}
    assert published.spec.node_name == published.spec.pool.name == "n1"
    assert published.metadata.owner_references == (owner,)


def test_there_are_as_many_devices_as_the_node_can_hold_claims() -> None:
    owner = OwnerReference("v1", "Node", "n1", "uid-n1")
    assert len(resource_slice(HEALTHY, owner).spec.devices) == MAX_CLAIMS == 16
    assert len(resource_slice(healthy_except(max_claims=3), owner).spec.devices) == 3


def test_devices_of_a_node_without_fabric_have_an_empty_clique() -> None:
    (device, *_) = resource_slice(NO_FABRIC, OwnerReference("v1", "Node", "n1", "uid")).spec.devices
    assert device.attributes["clique"].string == ""
    assert device.attributes["fabric"].string == "none"
