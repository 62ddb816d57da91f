"""From API objects to a scene: which rack a node stands in, who holds what there."""

import msgspec
import pytest

from imex_dra.api.meta import AnnotatedMeta, ObjectMeta
from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
    PartitionState,
    PartitionSummary,
)
from imex_dra.api.views import (
    Device,
    Node,
    NodeCondition,
    NodeStatus,
    Pod,
    PodStatus,
    Pool,
    ResourceSlice,
    ResourceSliceSpec,
)
from imex_dra.picture.observed import Observed, grouping, natural, scene, stem
from imex_dra.picture.scene import Domain, Holding, Place, Tally
from tests.controller.claims import claim, configuration, domain

HERE, THERE = "aaaa.1", "bbbb.1"
TRAIN, OTHER = domain("train"), domain("other")
LETTERS = {"uid-train": "A", "uid-other": "B"}


def node(name: str, labels: dict[str, str] | None = None, *, ready: bool = True) -> Node:
    status = NodeStatus((NodeCondition("Ready", "True" if ready else "Unknown"),))
    return Node(ObjectMeta(name=name, labels=labels or {}), status=status)


def card(name: str, partition: str = HERE) -> NVLinkNode:
    status = NVLinkNodeStatus(fabric=Fabric(FabricState.OK), partition=partition, imex_state=ImexState.READY)
    return NVLinkNode(ObjectMeta(name=name), status)


def pod(name: str, phase: str = "Running", namespace: str = "team") -> Pod:
    return Pod(ObjectMeta(name=name, namespace=namespace), status=PodStatus(phase))


def partition(name: str, **channels: int) -> NVLinkPartition:
    """Channels by the ComputeDomain's name."""
    assigned = tuple(
        ChannelAssignment(number, ChannelState.ASSIGNED, DomainReference("team", who, f"uid-{who}"), "")
        for who, number in channels.items()
    )
    status = NVLinkPartitionStatus(channels=assigned, summary=PartitionSummary(state=PartitionState.UP))
    return NVLinkPartition(AnnotatedMeta(name=name), NVLinkPartitionSpec(24, "imex-%03d"), status)


def seats(of: str, count: int) -> ResourceSlice:
    devices = tuple(Device(f"channel-{number}") for number in range(count))
    return ResourceSlice(ObjectMeta(name=of), ResourceSliceSpec(DRIVER, Pool(of, 1, 1), of, devices))


def names(groups: dict[str, list[Node]]) -> dict[str, list[str]]:
    return {name: [one.metadata.name for one in nodes] for name, nodes in groups.items()}


def test_racks_and_trays_stand_in_the_order_in_which_people_count() -> None:
    found = Observed(nodes=[node(name) for name in ("r1-n0", "r0-n10", "r0-n2", "r0-n0")])
    assert names(grouping(found)) == {"r0": ["r0-n0", "r0-n2", "r0-n10"], "r1": ["r1-n0"]}


def test_a_node_whose_partition_nobody_knows_yet_stands_with_those_named_like_it() -> None:
    found = Observed(nodes=[node("r0-n0"), node("r0-n1")], cards=[card("r0-n0")])
    assert names(grouping(found)) == {"r0": ["r0-n0", "r0-n1"]}


def test_a_rack_that_is_cut_is_shown_as_its_partitions() -> None:
    found = Observed(nodes=[node("r0-n0"), node("r0-n1")], cards=[card("r0-n0", "u.1"), card("r0-n1", "u.2")])
    assert names(grouping(found)) == {"r0.1": ["r0-n0"], "r0.2": ["r0-n1"]}


def test_nodes_whose_names_say_nothing_stand_with_their_partition() -> None:
    found = Observed(
        nodes=[node(name) for name in ("gab1", "gcd2", "gef3")],
        cards=[card("gab1", "aaaabbbb-cc.1"), card("gef3", "aaaabbbb-cc.1"), card("gcd2", "ddddeeee-ff.1")],
    )
    assert names(grouping(found)) == {"aaaabbbb": ["gab1", "gef3"], "gc": ["gcd2"]}


@pytest.mark.parametrize(
    ("name", "short"),
    [("r0-n07", "r0"), ("gb-rack-3-7", "gb-rack-3"), ("worker12", "worke"), ("17", "17"), ("alpha", "alpha")],
)
def test_the_stem_of_a_name(name: str, short: str) -> None:
    assert stem(name) == short


def test_natural_order_compares_mixed_names() -> None:
    assert sorted(["x", "n10", "9", "n9"], key=natural) == ["9", "n9", "n10", "x"]


def test_a_tray_tells_seats_claims_and_whether_the_channel_is_there() -> None:
    claims = [
        claim("one", configuration("uid-train"), nodes=("r0-n0",), pods=("p",)),
        claim("two", configuration("uid-train"), nodes=("r0-n0",), pods=("q",)),
        claim("three", configuration("uid-other"), nodes=("r0-n0",), pods=("r",)),
        claim("four", nodes=()),
    ]
    found = Observed(
        nodes=[node("r0-n0", {"nvidia.com/gpu.product": "NVIDIA-GB200"})],
        cards=[card("r0-n0")],
        partitions=[partition(HERE, train=7, other=8)],
        slices=[seats("r0-n0", 16)],
        claims=claims,
        domains=[OTHER, TRAIN],
        pods=[pod("p"), pod("r", "Pending")],
    )
    shown = scene(found, LETTERS)
    (rack,) = shown.racks
    (tray,) = rack.trays
    assert (rack.name, rack.product, rack.state) == ("r0", "GB200", "UP")
    assert (tray.ready, tray.imex, tray.fabric, tray.seats) == (True, "READY", "ok", 16)
    assert tray.holdings == (Holding("A", 2, prepared=True), Holding("B", 1, prepared=False))
    assert shown.domains == (
        Domain("A", "team", "train", "NotReady", (Place("r0", 7),)),
        Domain("B", "team", "other", "NotReady", (Place("r0", 8),)),
    )
    assert shown.tally == Tally((("reserved", 3), ("pending", 1)), (("Running", 1), ("Pending", 1)))


@pytest.mark.parametrize(
    ("pods", "prepared"),
    [
        ([pod("p")], True),
        ([pod("p", "Pending")], False),
        ([pod("p", "Succeeded")], False),
        ([pod("p", namespace="elsewhere")], False),
        ([pod("q")], False),
        ([], False),
    ],
)
def test_a_channel_is_in_a_container_while_a_pod_of_the_claim_runs(pods: list[Pod], prepared: bool) -> None:
    found = Observed(
        nodes=[node("r0-n0")],
        claims=[claim("one", configuration("uid-train"), nodes=("r0-n0",), pods=("p",))],
        domains=[TRAIN],
        pods=pods,
    )
    assert scene(found, LETTERS).racks[0].trays[0].holdings == (Holding("A", 1, prepared),)


def test_a_claim_that_is_allocated_and_not_reserved_is_no_channel_in_a_container() -> None:
    found = Observed(nodes=[node("r0-n0")], claims=[claim("one", configuration("uid-train"), nodes=("r0-n0",))])
    (tray,) = scene(found, LETTERS).racks[0].trays
    assert tray.holdings == (Holding("A", 1, prepared=False),)
    assert scene(found, LETTERS).tally == Tally((("allocated", 1),))


def test_a_channel_that_rests_belongs_to_nobody() -> None:
    resting = partition(HERE, train=1)
    entry = msgspec.structs.replace(resting.status.channels[0], state=ChannelState.RESTING)
    status = msgspec.structs.replace(resting.status, channels=(entry,))
    found = Observed(partitions=[msgspec.structs.replace(resting, status=status)], domains=[TRAIN])
    assert scene(found, LETTERS).domains == (Domain("A", "team", "train", "NotReady"),)


def test_a_node_without_a_card_is_shown_as_not_ready_for_imex() -> None:
    (rack,) = scene(Observed(nodes=[node("r0-n0", ready=False)]), LETTERS).racks
    assert (rack.trays[0].ready, rack.trays[0].imex, rack.trays[0].fabric, rack.state) == (
        False,
        "",
        "pending",
        "",
    )
