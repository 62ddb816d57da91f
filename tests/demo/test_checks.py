"""Each check of the demo, on what is right and on each thing that can be wrong."""

import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainStatus, DomainSummary, Readiness
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState, NVLinkPartition, PartitionState
from imex_dra.api.views import Node, ResourceClaim
from imex_dra.picture.observed import Observed
from imex_dra.sandbox.demo import checks
from imex_dra.sandbox.demo.report import Check, ClaimRow
from tests.controller.claims import claim, configuration, domain
from tests.picture.test_observed import HERE, THERE, card, node, partition, seats

NODES = [node("n0"), node("n1")]
CARDS = [card("n0"), card("n1")]


def with_members(
    found: NVLinkPartition, *nodes: str, state: PartitionState = PartitionState.UP
) -> NVLinkPartition:
    members = tuple(Member(name, slot, "127.0.0.1", MemberState.READY) for slot, name in enumerate(nodes))
    summary = msgspec.structs.replace(found.status.summary, state=state, nodes=f"{len(nodes)}/{len(nodes)}")
    status = msgspec.structs.replace(found.status, members=members, summary=summary)
    return msgspec.structs.replace(found, status=status)


def verdicts(found: list[Check]) -> list[bool]:
    return [check.ok for check in found]


@pytest.mark.parametrize(
    ("nodes", "good", "words"),
    [
        (NODES, True, "2 of 2"),
        (NODES[:1], False, "1 of 2"),
        ([NODES[0], node("n1", ready=False)], False, "1 of 2: n1 is not"),
        ([*NODES, node("n2", ready=False)], False, "2 of 2: n2 is not"),
        ([], False, "0 of 2"),
    ],
)
def test_all_nodes_have_to_be_ready(nodes: list[Node], good: bool, words: str) -> None:
    assert checks.nodes_are_ready(Observed(nodes=nodes), 2) == Check("nodes are Ready", good, words)


def unready(name: str) -> NVLinkNode:
    ready = card(name)
    status = msgspec.structs.replace(ready.status, imex_state=ImexState.WAITING_FOR_PEERS)
    return msgspec.structs.replace(ready, status=status)


@pytest.mark.parametrize(
    ("cards", "good", "words"),
    [
        (CARDS, True, "2 of 2"),
        (CARDS[:1], False, "1 of 2"),
        ([CARDS[0], unready("n1")], False, "1 of 2: n1 is WAITING_FOR_PEERS"),
    ],
)
def test_all_daemons_have_to_be_ready(cards: list[NVLinkNode], good: bool, words: str) -> None:
    assert checks.daemons_are_ready(Observed(cards=cards), 2) == Check("IMEX daemons are READY", good, words)


WHOLE = [with_members(partition(HERE), "n0"), with_members(partition(THERE), "n1")]


@pytest.mark.parametrize(
    ("partitions", "good", "words"),
    [
        (WHOLE, True, "UP 1/1, UP 1/1"),
        (WHOLE[:1], False, "UP 1/1"),
        ([WHOLE[0], with_members(partition(THERE))], False, "UP 0/0, UP 1/1"),
        (
            [WHOLE[0], with_members(partition(THERE), "n1", state=PartitionState.DEGRADED)],
            False,
            "DEGRADED 1/1, UP 1/1",
        ),
        ([], False, "there is none"),
    ],
)
def test_all_partitions_have_to_be_up_and_whole(partitions: list[NVLinkPartition], good: bool, words: str) -> None:
    found = checks.partitions_are_up(Observed(partitions=partitions), expected=2, members=1)
    assert (found.ok, found.found) == (good, words)


def test_every_node_has_to_offer_seats() -> None:
    both = Observed(nodes=NODES, slices=[seats("n0", 16), seats("n1", 16)])
    one = Observed(nodes=NODES, slices=[seats("n0", 16), seats("n1", 0)])
    assert checks.seats_are_offered(both, 2).ok
    assert checks.seats_are_offered(one, 2) == Check(
        "nodes offer seats to the scheduler", False, "1 of 2: n1 does not"
    )


def told(status: Readiness, message: str = "") -> ComputeDomain:
    conditions = (Condition("Ready", "False", "NotConnected", "", message),) if message else ()
    said = ComputeDomainStatus(status, conditions=conditions, summary=DomainSummary(nodes="18/18"))
    return msgspec.structs.replace(domain("train"), status=said)


def test_a_computedomain_that_is_not_ready_says_why() -> None:
    assert checks.domain_is_ready(told(Readiness.READY)).ok
    found = checks.domain_is_ready(told(Readiness.NOT_READY, "n3 is not connected"))
    assert (found.ok, found.found) == (False, "NotReady, 18/18 nodes, n3 is not connected")
    assert checks.domain_is_ready(None) == Check("the ComputeDomain is Ready", False, "it is gone")


def held(name: str, on: str, *, pods: tuple[str, ...] = ("p",)) -> ResourceClaim:
    return claim(name, configuration("uid-train"), nodes=(on,), pods=pods)


PARTITIONS = [with_members(partition(HERE, train=1), "n0", "n1"), with_members(partition(THERE, train=1), "n2")]


def rows(*claims: ResourceClaim) -> list[ClaimRow]:
    return [checks.row(one, PARTITIONS) for one in claims]


def test_a_claim_is_told_with_node_partition_and_channel() -> None:
    assert rows(held("c", "n0")) == [ClaimRow("c", ("p",), "allocated,reserved", "n0", HERE, 1)]


def test_a_claim_on_a_node_of_no_partition_or_of_no_computedomain_has_no_channel() -> None:
    stray = claim("c", configuration("uid-unknown"), nodes=("n0",), pods=("p",))
    assert [one.channel for one in rows(held("c", "n9"), stray)] == [None, None]


def test_two_channels_of_one_computedomain_in_one_partition_are_none() -> None:
    """The one thing that must never be: no number is told rather than the first that comes."""
    twice = with_members(partition(HERE, train=1), "n0")
    second = msgspec.structs.replace(twice.status.channels[0], channel=2)
    status = msgspec.structs.replace(twice.status, channels=(*twice.status.channels, second))
    found = checks.row(held("c", "n0"), [msgspec.structs.replace(twice, status=status)])
    assert found.channel is None
    assert verdicts(checks.claims_are_held([found], 1)) == [True, True, False, True]


def deleted(found: ResourceClaim) -> ResourceClaim:
    meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(found, metadata=meta)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (held("c", "n0"), "allocated,reserved"),
        (held("c", "n0", pods=()), "allocated"),
        (claim("c", nodes=()), "pending"),
        (deleted(held("c", "n0")), "deleted,allocated,reserved"),
    ],
)
def test_a_claim_s_state_is_kubectl_s_word_for_it(found: ResourceClaim, words: str) -> None:
    assert checks.state(found) == words


FINE = (held("a", "n0"), held("b", "n1"))


@pytest.mark.parametrize(
    ("claims", "good", "words"),
    [
        (FINE, [True, True, True, True], "2 of 2"),
        (FINE[:1], [False, False, True, True], "1 of 2"),
        ((*FINE, held("c", "n0")), [False, True, True, True], "3 of 2"),
        ((FINE[0], held("b", "n1", pods=())), [False, True, True, True], "1 of 2: b is allocated"),
        ((FINE[0], claim("b", nodes=())), [False, False, False, False], "1 of 2: b is pending"),
        ((FINE[0], held("b", "n0")), [True, False, True, True], "2 of 2"),
        ((FINE[0], held("b", "n2")), [True, True, True, False], "2 of 2"),
        ((FINE[0], held("b", "n9")), [True, True, False, False], "2 of 2"),
        ((), [False, False, False, False], "0 of 2"),
    ],
)
def test_claims_have_to_be_allocated_and_reserved_with_one_channel_in_one_partition(
    claims: tuple[ResourceClaim, ...], good: list[bool], words: str
) -> None:
    found = checks.claims_are_held(rows(*claims), 2)
    assert verdicts(found) == good
    assert found[0].found == words


def test_two_channels_are_named() -> None:
    one, other = (
        ClaimRow("a", ("p",), "allocated,reserved", "n0", HERE, 1),
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, 2),
    )
    assert checks.claims_are_held([one, other], 2)[2] == Check("one channel", False, "channel 1, 2")
    assert checks.channels_differ(one, other).ok


@pytest.mark.parametrize(
    "other",
    [
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, 1),
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, None),
        ClaimRow("b", ("q",), "allocated,reserved", "n2", THERE, 2),
    ],
)
def test_another_computedomain_has_to_have_another_channel_in_the_same_partition(other: ClaimRow) -> None:
    assert not checks.channels_differ(ClaimRow("a", ("p",), "allocated,reserved", "n0", HERE, 1), other).ok


@pytest.mark.parametrize(
    ("left", "failing"),
    [
        (Observed(nodes=NODES, cards=CARDS, partitions=WHOLE), ""),
        (Observed(domains=[domain("train")]), "no ComputeDomain is left: team/train"),
        (Observed(claims=[held("a", "n0")]), "no claim is left: team/a"),
        (Observed(cards=[card("n0", held=(3,))]), "no node holds a channel: n0"),
        (Observed(partitions=[partition(HERE, train=5)]), "no channel is assigned: 5"),
    ],
)
def test_nothing_may_be_left(left: Observed, failing: str) -> None:
    found = checks.nothing_is_left(left)
    assert [f"{check.what}: {check.found}" for check in found if not check.ok] == ([failing] if failing else [])


def test_a_sentence_names_three_and_counts_the_rest() -> None:
    many = Observed(claims=[held(name, "n0") for name in "abcde"])
    assert checks.nothing_is_left(many)[1].found == "team/a, team/b, team/c and 2 more"
