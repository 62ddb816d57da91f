"""Each check of the demo, on a good state and on each way in which it can fail."""

import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainStatus, DomainNode, DomainSummary, Readiness
from imex_dra.api.meta import Condition, ObjectMeta
from imex_dra.api.nvlinknode import ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, Member, MemberState, NVLinkPartition, PartitionState
from imex_dra.api.views import Node, Pod, PodStatus, ResourceClaim
from imex_dra.picture.snapshot import Snapshot
from imex_sandbox.demo import checks
from imex_sandbox.demo.report import Check, ClaimRow
from imex_sandbox.demo.sharedmemory import CONTENT, MemoryResult
from imex_sandbox.demo.workloads import Job
from tests.controller.claims import claim, configuration, domain
from tests.picture.test_snapshot import HERE, THERE, node, nvlink_node, partition, resource_slice

NODES = [node("n0"), node("n1")]
NVLINK_NODES = [nvlink_node("n0"), nvlink_node("n1")]


def with_members(
    found: NVLinkPartition, *nodes: str, state: PartitionState = PartitionState.UP
) -> NVLinkPartition:
    members = tuple(Member(name, index, "127.0.0.1", MemberState.READY) for index, name in enumerate(nodes))
    summary = msgspec.structs.replace(found.status.summary, state=state, nodes=f"{len(nodes)}/{len(nodes)}")
    status = msgspec.structs.replace(found.status, members=members, summary=summary)
    return msgspec.structs.replace(found, status=status)


def results(found: list[Check]) -> list[bool]:
    return [check.ok for check in found]


@pytest.mark.parametrize(
    ("nodes", "ok", "found"),
    [
        (NODES, True, "2 of 2"),
        (NODES[:1], False, "1 of 2"),
        ([NODES[0], node("n1", ready=False)], False, "1 of 2: n1 is not"),
        ([*NODES, node("n2", ready=False)], False, "2 of 2: n2 is not"),
        ([], False, "0 of 2"),
    ],
)
def test_all_nodes_must_be_ready(nodes: list[Node], ok: bool, found: str) -> None:
    assert checks.nodes_are_ready(Snapshot(nodes=nodes), 2) == Check("nodes are Ready", ok, found)


def unready(name: str) -> NVLinkNode:
    ready = nvlink_node(name)
    status = msgspec.structs.replace(ready.status, imex_state=ImexState.WAITING_FOR_PEERS)
    return msgspec.structs.replace(ready, status=status)


@pytest.mark.parametrize(
    ("nvlink_nodes", "ok", "found"),
    [
        (NVLINK_NODES, True, "2 of 2"),
        (NVLINK_NODES[:1], False, "1 of 2"),
        ([NVLINK_NODES[0], unready("n1")], False, "1 of 2: n1 is WAITING_FOR_PEERS"),
    ],
)
def test_all_imex_daemons_must_be_ready(nvlink_nodes: list[NVLinkNode], ok: bool, found: str) -> None:
    assert checks.daemons_are_ready(Snapshot(nvlink_nodes=nvlink_nodes), 2) == Check(
        "IMEX daemons are READY", ok, found
    )


COMPLETE = [with_members(partition(HERE), "n0"), with_members(partition(THERE), "n1")]


@pytest.mark.parametrize(
    ("partitions", "ok", "found"),
    [
        (COMPLETE, True, "UP 1/1, UP 1/1"),
        (COMPLETE[:1], False, "UP 1/1"),
        ([COMPLETE[0], with_members(partition(THERE))], False, "UP 0/0, UP 1/1"),
        (
            [COMPLETE[0], with_members(partition(THERE), "n1", state=PartitionState.DEGRADED)],
            False,
            "DEGRADED 1/1, UP 1/1",
        ),
        ([], False, "none"),
    ],
)
def test_all_partitions_must_be_up_and_complete(partitions: list[NVLinkPartition], ok: bool, found: str) -> None:
    check = checks.partitions_are_up(Snapshot(partitions=partitions), expected=2, members=1)
    assert (check.ok, check.found) == (ok, found)


def test_every_node_must_publish_channel_devices() -> None:
    both = Snapshot(nodes=NODES, slices=[resource_slice("n0", 16), resource_slice("n1", 16)])
    one = Snapshot(nodes=NODES, slices=[resource_slice("n0", 16), resource_slice("n1", 0)])
    assert checks.channel_devices_are_published(both, 2).ok
    assert checks.channel_devices_are_published(one, 2) == Check(
        "nodes publish channel devices", False, "1 of 2: n1 does not"
    )


def train(status: Readiness, message: str = "", nodes: int = 2) -> ComputeDomain:
    conditions = (Condition("Ready", "False", "NotConnected", "", message),) if message else ()
    listed = tuple(DomainNode(f"n{number}", "127.0.0.1", HERE) for number in range(nodes))
    domain_status = ComputeDomainStatus(
        status, listed, conditions=conditions, summary=DomainSummary(nodes=f"{nodes}/{nodes}")
    )
    return msgspec.structs.replace(domain("train"), status=domain_status)


@pytest.mark.parametrize(
    ("domain", "ok", "found"),
    [
        (train(Readiness.READY), True, "Ready, nodes 2/2"),
        (train(Readiness.READY, nodes=0), False, "Ready, nodes 0/0"),
        (train(Readiness.READY, nodes=3), False, "Ready, nodes 3/3"),
        (train(Readiness.NOT_READY, "n1 is not connected"), False, "NotReady, nodes 2/2, n1 is not connected"),
        (None, False, "it is gone"),
    ],
)
def test_a_computedomain_must_be_ready_on_its_nodes(domain: ComputeDomain | None, ok: bool, found: str) -> None:
    assert checks.domain_is_ready(domain, 2) == Check("the ComputeDomain is Ready", ok, found)


def reserved(name: str, on: str, *, pods: tuple[str, ...] = ("p",)) -> ResourceClaim:
    return claim(name, configuration("uid-train"), nodes=(on,), pods=pods)


PARTITIONS = [with_members(partition(HERE, train=1), "n0", "n1"), with_members(partition(THERE, train=1), "n2")]


def rows(*claims: ResourceClaim) -> list[ClaimRow]:
    return [checks.claim_row(one, PARTITIONS) for one in claims]


def test_a_row_has_the_node_the_partition_and_the_channel_of_a_claim() -> None:
    assert rows(reserved("c", "n0")) == [ClaimRow("c", ("p",), "allocated,reserved", "n0", HERE, 1)]


def test_a_claim_without_a_partition_or_a_computedomain_has_no_channel() -> None:
    unknown = claim("c", configuration("uid-unknown"), nodes=("n0",), pods=("p",))
    assert [one.channel for one in rows(reserved("c", "n9"), unknown)] == [None, None]


def test_two_channels_of_one_computedomain_in_one_partition_fail_the_check() -> None:
    twice = with_members(partition(HERE, train=1), "n0")
    second = msgspec.structs.replace(twice.status.channels[0], channel=2)
    status = msgspec.structs.replace(twice.status, channels=(*twice.status.channels, second))
    found = checks.claim_row(reserved("c", "n0"), [msgspec.structs.replace(twice, status=status)])
    assert found.channel is None
    assert results(checks.claims_are_reserved([found], 1)) == [True, False, True]


def test_a_released_channel_belongs_to_no_claim() -> None:
    released = with_members(partition(HERE, train=1), "n0")
    entry = msgspec.structs.replace(released.status.channels[0], state=ChannelState.RELEASED)
    status = msgspec.structs.replace(released.status, channels=(entry,))
    assert (
        checks.claim_row(reserved("c", "n0"), [msgspec.structs.replace(released, status=status)]).channel is None
    )


def deleted(found: ResourceClaim) -> ResourceClaim:
    meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(found, metadata=meta)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (reserved("c", "n0"), "allocated,reserved"),
        (reserved("c", "n0", pods=()), "allocated"),
        (claim("c", nodes=()), "pending"),
        (deleted(reserved("c", "n0")), "deleted,allocated,reserved"),
    ],
)
def test_the_state_of_a_claim_is_that_of_kubectl(found: ResourceClaim, state: str) -> None:
    assert checks.claim_state(found) == state


RESERVED = (reserved("a", "n0"), reserved("b", "n1"))


@pytest.mark.parametrize(
    ("claims", "ok", "found"),
    [
        (RESERVED, [True, True, True], "2 of 2"),
        (RESERVED[:1], [False, True, True], "1 of 2"),
        ((*RESERVED, reserved("c", "n0")), [False, True, True], "3 of 2"),
        ((*RESERVED, reserved("c", "n0", pods=())), [False, True, True], "2 of 2: c is allocated"),
        ((RESERVED[0], reserved("b", "n1", pods=())), [False, True, True], "1 of 2: b is allocated"),
        ((RESERVED[0], claim("b", nodes=())), [False, False, False], "1 of 2: b is pending"),
        ((RESERVED[0], reserved("b", "n2")), [True, True, False], "2 of 2"),
        ((RESERVED[0], reserved("b", "n9")), [True, False, False], "2 of 2"),
        ((), [False, False, False], "0 of 2"),
    ],
)
def test_claims_must_be_allocated_and_reserved_with_one_channel_in_one_partition(
    claims: tuple[ResourceClaim, ...], ok: list[bool], found: str
) -> None:
    checked = checks.claims_are_reserved(rows(*claims), 2)
    assert results(checked) == ok
    assert checked[0].found == found


def test_claims_must_be_on_different_nodes() -> None:
    assert checks.claims_are_on_different_nodes(rows(*RESERVED), 2).ok
    shared = checks.claims_are_on_different_nodes(rows(RESERVED[0], reserved("b", "n0")), 2)
    assert (shared.ok, shared.found) == (False, "1 of 2")


def test_the_check_lists_the_channels_if_they_differ() -> None:
    one, other = (
        ClaimRow("a", ("p",), "allocated,reserved", "n0", HERE, 1),
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, 2),
    )
    assert checks.claims_are_reserved([one, other], 2)[1] == Check("one channel", False, "channel 1, 2")
    assert checks.channels_differ(one, other).ok


@pytest.mark.parametrize(
    "other",
    [
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, 1),
        ClaimRow("b", ("q",), "allocated,reserved", "n1", HERE, None),
        ClaimRow("b", ("q",), "allocated,reserved", "n2", THERE, 2),
    ],
)
def test_another_computedomain_must_have_another_channel_in_the_same_partition(other: ClaimRow) -> None:
    assert not checks.channels_differ(ClaimRow("a", ("p",), "allocated,reserved", "n0", HERE, 1), other).ok


@pytest.mark.parametrize(
    ("left", "failing"),
    [
        (Snapshot(nodes=NODES, nvlink_nodes=NVLINK_NODES, partitions=COMPLETE), ""),
        (Snapshot(domains=[domain("train")]), "no ComputeDomain is left: team/train"),
        (Snapshot(claims=[reserved("a", "n0")]), "no claim is left: team/a"),
        (Snapshot(partitions=[partition(HERE, train=5)]), "no channel is assigned: 5"),
    ],
)
def test_nothing_must_be_left(left: Snapshot, failing: str) -> None:
    found = checks.nothing_is_left(left)
    assert [f"{check.what}: {check.found}" for check in found if not check.ok] == ([failing] if failing else [])


def test_no_node_must_have_a_prepared_claim() -> None:
    assert checks.no_claim_is_prepared([]).ok
    left = checks.no_claim_is_prepared(["r0-n00/run/cdi/imex-dra.io-channel_u.json"])
    assert (left.ok, left.found) == (False, "r0-n00/run/cdi/imex-dra.io-channel_u.json")


def test_a_check_lists_three_objects_and_counts_the_rest() -> None:
    many = Snapshot(claims=[reserved(name, "n0") for name in "abcde"])
    assert checks.nothing_is_left(many)[1].found == "team/a, team/b, team/c and 2 more"


@pytest.mark.parametrize(
    ("output", "ok"),
    [
        ("channel7\ntrain 7", True),
        ("channel7\nchannel8\ntrain 7", False),
        ("channel8\ntrain 7", False),
        ("channel7\nother 7", False),
        ("train ", False),
        ("", False),
    ],
)
def test_a_container_must_have_its_channel_and_no_other(output: str, ok: bool) -> None:
    check = checks.container_has_its_channel(output, "train", 7)
    assert (check.ok, check.found) == (ok, output.replace("\n", ", "))


def test_a_container_must_have_no_channel_if_its_claim_has_none() -> None:
    assert not checks.container_has_its_channel("channel7\ntrain 7", "train", None).ok


@pytest.mark.parametrize(
    ("result", "read", "refused"),
    [
        (MemoryResult(content=CONTENT.decode()), True, False),
        (MemoryResult(content="something else"), False, False),
        (MemoryResult(code=800, name="CUDA_ERROR_NOT_PERMITTED", why="another channel"), False, True),
        (MemoryResult(code=400, name="CUDA_ERROR_INVALID_HANDLE", why="no such export"), False, False),
        (MemoryResult(code=801, name="CUDA_ERROR_NOT_SUPPORTED", why="the daemon is not READY"), False, False),
        (MemoryResult(code=2, name="CUDA_ERROR_OUT_OF_MEMORY", why="no memory"), False, False),
        (MemoryResult(), False, False),
    ],
)
def test_only_cuda_error_not_permitted_counts_as_a_refusal(
    result: MemoryResult, read: bool, refused: bool
) -> None:
    assert (checks.memory_was_read(result).ok, checks.memory_was_refused(result).ok) == (read, refused)


OUTPUT = """\
#  Rank  0 Group  0 Pid    11 on index 0 device  0 [soft]
#  Rank  1 Group  0 Pid    12 on index 0 device  1 [soft]
# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize(
    ("output", "ok", "found"),
    [
        (OUTPUT, [True, True], ["2 of 2", "0 OK"]),
        (OUTPUT.replace("0 OK", "3 FAILED"), [True, False], ["2 of 2", "3 FAILED"]),
        (OUTPUT.replace("Rank  1 Group", "Bank  1 Group"), [False, True], ["1 of 2", "0 OK"]),
        ("", [False, False], ["0 of 2", "no result"]),
    ],
)
def test_the_output_of_the_allreduce_must_have_all_ranks_and_no_wrong_element(
    output: str, ok: list[bool], found: list[str]
) -> None:
    checked = checks.allreduce_succeeded(output, ranks=2)
    assert (results(checked), [check.found for check in checked]) == (ok, found)


def test_the_progress_of_a_job_counts_running_workers_only() -> None:
    job = Job(workers=2, slots=4)
    pods = [
        Pod(ObjectMeta(name=f"allreduce-worker-{n}"), status=PodStatus(phase))
        for n, phase in enumerate(["Running", "Pending"])
    ]
    pods.append(Pod(ObjectMeta(name="allreduce-launcher-x"), status=PodStatus("Running")))
    assert job.progress(pods) == "1 of 2 workers are running"
    assert job.ranks == 8
