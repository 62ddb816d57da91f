"""Records that were lost or restored: noticed, completed, and closed until everybody has answered."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainSpec, ComputeDomainStatus, DomainPartition
from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.nvlinknode import FabricState, HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    NVLinkPartitionStatus,
)
from imex_dra.controller.record import completed, renewed, still_awaited
from tests.controller.partition import ELSEWHERE, HERE, card, member

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = NVLinkPartitionStatus(generation=5, members=(member("a", 0),), recall=3)


def domain(uid: str, *channels: int, partition: str = HERE) -> ComputeDomain:
    status = ComputeDomainStatus(partitions=tuple(DomainPartition(partition, channel) for channel in channels))
    return ComputeDomain(AnnotatedMeta(name=uid, namespace="team", uid=uid), ComputeDomainSpec(), status)


def cards(*given: NVLinkNode) -> dict[str, NVLinkNode]:
    return {one.metadata.name: one for one in given}


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", uid, uid), "2026-01-01T00:00:00Z")


def test_a_record_that_the_cards_don_t_contradict_is_the_last_one() -> None:
    known = cards(
        card("a", answered=3, applied=5), card("b", answered=0), card("c", partition=ELSEWHERE, answered=9)
    )
    assert renewed(HERE, RECORD, known, [domain("d", 4)], {"x"}) == RECORD


@pytest.mark.parametrize("proof", [card("b", answered=4), card("b", applied=6)], ids=["a recall", "a member list"])
def test_a_card_that_knows_more_proves_that_it_is_an_old_one(proof: NVLinkNode) -> None:
    after = renewed(HERE, RECORD, cards(card("a", answered=3), proof), [], {"x"})
    assert after.recall == max(3, proof.status.answered_recall) + 2
    assert after.awaited == ("a", "b", "x")
    assert after.members == ()
    assert after.open_generation == max(5, proof.status.applied_generation) + 1
    assert structs.replace(after, recall=3, awaited=(), members=RECORD.members, open_generation=0) == RECORD


@pytest.mark.parametrize(
    ("known", "domains", "awaited"),
    [
        (cards(card("a")), [], ()),
        (cards(card("a", answered=7)), [], ("a", "x")),
        (cards(card("a", applied=7)), [], ("a", "x")),
        (cards(card("a")), [domain("d", 4)], ("a", "x")),
        (cards(card("a")), [domain("d", 4, partition=ELSEWHERE)], ()),
        (cards(card("a", held=(HeldChannel(HERE, 1, "d"),))), [], ("a", "x")),
        (cards(card("a", held=(HeldChannel(ELSEWHERE, 1, "d"),))), [], ()),
    ],
    ids=["new", "answered", "applied", "a ComputeDomain knows it", "knows another", "held", "another held"],
)
def test_a_new_record_awaits_everybody_if_there_was_one_before(
    known: dict[str, NVLinkNode], domains: list[ComputeDomain], awaited: tuple[str, ...]
) -> None:
    after = renewed(HERE, NVLinkPartitionStatus(), known, domains, {"x"})
    above = 2 if awaited else 1
    assert (after.recall, after.awaited) == (known["a"].status.answered_recall + above, awaited)


@pytest.mark.parametrize(
    ("says", "missing"),
    [
        (None, True),
        (card("a", answered=2), True),
        (card("a", answered=3), False),
        (card("a", answered=9, partition=""), True),
        (card("a", partition=ELSEWHERE), False),
        (card("a", partition="", fabric=FabricState.NONE), False),
    ],
    ids=["no card", "not yet", "answered", "nowhere", "elsewhere", "no fabric"],
)
def test_a_node_is_awaited_until_it_answered_or_is_certainly_elsewhere(
    says: NVLinkNode | None, missing: bool
) -> None:
    record = structs.replace(RECORD, awaited=("a", "gone"))
    assert still_awaited(HERE, record, cards(says) if says else {}, {"a"}) == (("a",) if missing else ())


def test_a_record_is_completed_from_what_others_know_and_what_is_contradictory_rests() -> None:
    held = (HeldChannel(HERE, 1, "a"), HeldChannel(HERE, 6, "e"), HeldChannel(HERE, 7, "gone"))
    more = (HeldChannel(HERE, 8, "a"), HeldChannel(HERE, 9, "old"), HeldChannel(ELSEWHERE, 10, "a"))
    domains = [domain("a", 1), domain("b", 2), domain("c", 2), domain("d", 5, partition=ELSEWHERE), domain("e")]
    entries = completed(
        HERE, (entry(9, "f"),), domains, [card("n", held=held), card("m", held=more)], recall=4, now=NOW
    )
    assert [(e.channel, e.state.value, e.compute_domain.uid) for e in entries] == [
        (1, "Assigned", "a"),
        (2, "Resting", ""),
        (6, "Assigned", "e"),
        (7, "Resting", "gone"),
        (8, "Resting", "a"),
        (9, "Resting", ""),
    ]
    assert {e.recall for e in entries if e.state is ChannelState.RESTING} == {4}
    assert all(e.since for e in entries)


def test_what_the_record_knows_already_stays_as_it_is() -> None:
    resting = structs.replace(entry(2, "b", ChannelState.RESTING), recall=1)
    known = (entry(1, "a"), resting)
    says = card("n", held=(HeldChannel(HERE, 1, "a"), HeldChannel(HERE, 2, "b")))
    assert completed(HERE, known, [domain("a", 1)], [says], recall=4, now=NOW) == known
