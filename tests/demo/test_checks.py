"""Each check of the demo, on what is right and on each thing that can be wrong."""

import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainStatus, DomainNode, DomainSummary, Readiness
from imex_dra.api.meta import Condition, ObjectMeta
from imex_dra.api.nvlinknode import ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, Member, MemberState, NVLinkPartition, PartitionState
from imex_dra.api.views import Node, Pod, PodStatus, ResourceClaim
from imex_dra.picture.observed import Observed
from imex_dra.sandbox.demo import checks, mpijob
from imex_dra.sandbox.demo.memory import CONTENT, Word
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


def told(status: Readiness, message: str = "", nodes: int = 2) -> ComputeDomain:
    conditions = (Condition("Ready", "False", "NotConnected", "", message),) if message else ()
    listed = tuple(DomainNode(f"n{number}", "127.0.0.1", HERE) for number in range(nodes))
    said = ComputeDomainStatus(
        status, listed, conditions=conditions, summary=DomainSummary(nodes=f"{nodes}/{nodes}")
    )
    return msgspec.structs.replace(domain("train"), status=said)


@pytest.mark.parametrize(
    ("found", "good", "words"),
    [
        (told(Readiness.READY), True, "Ready, nodes 2/2"),
        (told(Readiness.READY, nodes=0), False, "Ready, nodes 0/0"),
        (told(Readiness.READY, nodes=3), False, "Ready, nodes 3/3"),
        (told(Readiness.NOT_READY, "n1 is not connected"), False, "NotReady, nodes 2/2, n1 is not connected"),
        (None, False, "it is gone"),
    ],
)
def test_a_computedomain_has_to_be_ready_on_its_nodes(found: ComputeDomain | None, good: bool, words: str) -> None:
    assert checks.domain_is_ready(found, 2) == Check("the ComputeDomain is Ready", good, words)


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
    assert verdicts(checks.claims_are_held([found], 1)) == [True, False, True]


def test_a_channel_that_rests_is_no_claim_s() -> None:
    resting = with_members(partition(HERE, train=1), "n0")
    entry = msgspec.structs.replace(resting.status.channels[0], state=ChannelState.RESTING)
    status = msgspec.structs.replace(resting.status, channels=(entry,))
    assert checks.row(held("c", "n0"), [msgspec.structs.replace(resting, status=status)]).channel is None


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
        (FINE, [True, True, True], "2 of 2"),
        (FINE[:1], [False, True, True], "1 of 2"),
        ((*FINE, held("c", "n0")), [False, True, True], "3 of 2"),
        ((*FINE, held("c", "n0", pods=())), [False, True, True], "2 of 2: c is allocated"),
        ((FINE[0], held("b", "n1", pods=())), [False, True, True], "1 of 2: b is allocated"),
        ((FINE[0], claim("b", nodes=())), [False, False, False], "1 of 2: b is pending"),
        ((FINE[0], held("b", "n2")), [True, True, False], "2 of 2"),
        ((FINE[0], held("b", "n9")), [True, False, False], "2 of 2"),
        ((), [False, False, False], "0 of 2"),
    ],
)
def test_claims_have_to_be_allocated_and_reserved_with_one_channel_in_one_partition(
    claims: tuple[ResourceClaim, ...], good: list[bool], words: str
) -> None:
    found = checks.claims_are_held(rows(*claims), 2)
    assert verdicts(found) == good
    assert found[0].found == words


def test_claims_have_to_be_on_nodes_of_their_own() -> None:
    assert checks.nodes_are_their_own(rows(*FINE), 2).ok
    shared = checks.nodes_are_their_own(rows(FINE[0], held("b", "n0")), 2)
    assert (shared.ok, shared.found) == (False, "1 of 2")


def test_two_channels_are_named() -> None:
    one, other = (
        ClaimRow("a", ("p",), "allocated,reserved", "n0", HERE, 1),
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, 2),
    )
    assert checks.claims_are_held([one, other], 2)[1] == Check("one channel", False, "channel 1, 2")
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
        (Observed(partitions=[partition(HERE, train=5)]), "no channel is assigned: 5"),
    ],
)
def test_nothing_may_be_left(left: Observed, failing: str) -> None:
    found = checks.nothing_is_left(left)
    assert [f"{check.what}: {check.found}" for check in found if not check.ok] == ([failing] if failing else [])


def test_no_node_may_have_a_channel_prepared() -> None:
    assert checks.nodes_are_empty([]).ok
    left = checks.nodes_are_empty(["r0-n00/run/cdi/imex-dra.io-channel_u.json"])
    assert (left.ok, left.found) == (False, "r0-n00/run/cdi/imex-dra.io-channel_u.json")


def test_a_sentence_names_three_and_counts_the_rest() -> None:
    many = Observed(claims=[held(name, "n0") for name in "abcde"])
    assert checks.nothing_is_left(many)[1].found == "team/a, team/b, team/c and 2 more"


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("channel7\ntrain 7", True),
        ("channel7\nchannel8\ntrain 7", False),
        ("channel8\ntrain 7", False),
        ("channel7\nother 7", False),
        ("train ", False),
        ("", False),
    ],
)
def test_a_container_has_its_channel_and_no_other(said: str, good: bool) -> None:
    found = checks.container_has(said, "train", 7)
    assert (found.ok, found.found) == (good, said.replace("\n", ", "))


def test_a_container_of_a_claim_without_a_channel_has_none() -> None:
    assert not checks.container_has("channel7\ntrain 7", "train", None).ok


@pytest.mark.parametrize(
    ("word", "let_in", "refused"),
    [
        (Word(content=CONTENT.decode()), True, False),
        (Word(content="something else"), False, False),
        (Word(code=800, name="CUDA_ERROR_NOT_PERMITTED", why="another channel"), False, True),
        (Word(code=400, name="CUDA_ERROR_INVALID_HANDLE", why="no such export"), False, False),
        (Word(code=801, name="CUDA_ERROR_NOT_SUPPORTED", why="the daemon is not READY"), False, False),
        (Word(code=2, name="CUDA_ERROR_OUT_OF_MEMORY", why="no memory"), False, False),
        (Word(), False, False),
    ],
)
def test_a_refusal_is_one_for_the_right_reason(word: Word, let_in: bool, refused: bool) -> None:
    assert (checks.was_let_in(word).ok, checks.was_refused(word).ok) == (let_in, refused)


OUTPUT = """\
#  Rank  0 Group  0 Pid    11 on slot 0 device  0 [soft]
#  Rank  1 Group  0 Pid    12 on slot 0 device  1 [soft]
# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize(
    ("output", "good", "found"),
    [
        (OUTPUT, [True, True], ["2 of 2", "0 OK"]),
        (OUTPUT.replace("0 OK", "3 FAILED"), [True, False], ["2 of 2", "3 FAILED"]),
        (OUTPUT.replace("Rank  1 Group", "Bank  1 Group"), [False, True], ["1 of 2", "0 OK"]),
        ("", [False, False], ["0 of 2", "no verdict"]),
    ],
)
def test_the_job_is_judged_by_what_the_all_reduce_says(output: str, good: list[bool], found: list[str]) -> None:
    verdict = mpijob.judged(output, ranks=2)
    assert (verdicts(verdict), [check.found for check in verdict]) == (good, found)


def test_a_job_knows_its_workers() -> None:
    job = mpijob.Job(workers=2, slots=4)
    pods = [
        Pod(ObjectMeta(name=f"allreduce-worker-{n}"), status=PodStatus(phase))
        for n, phase in enumerate(["Running", "Pending"])
    ]
    pods.append(Pod(ObjectMeta(name="allreduce-launcher-x"), status=PodStatus("Running")))
    assert job.progress(pods) == "1 of 2 workers run"
    assert job.ranks == 8
