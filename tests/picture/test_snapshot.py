"""From API objects to the model: the rack of each node, and the claims of each ComputeDomain there."""

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
from imex_dra.picture.model import Counts, Domain, DomainClaims, RackChannel
from imex_dra.picture.snapshot import Snapshot, build_model, group_by_rack, name_prefix, natural_order
from tests.controller.claims import claim, configuration, domain

HERE, THERE = "aaaa.1", "bbbb.1"
TRAIN, OTHER = domain("train"), domain("other")
LETTERS = {"uid-train": "A", "uid-other": "B"}


def node(name: str, labels: dict[str, str] | None = None, *, ready: bool = True) -> Node:
    status = NodeStatus((NodeCondition("Ready", "True" if ready else "Unknown"),))
    return Node(ObjectMeta(name=name, labels=labels or {}), status=status)


def nvlink_node(name: str, partition: str = HERE) -> NVLinkNode:
    status = NVLinkNodeStatus(fabric=Fabric(FabricState.OK), partition=partition, imex_state=ImexState.READY)
    return NVLinkNode(ObjectMeta(name=name), status)


def pod(name: str, phase: str = "Running", namespace: str = "team") -> Pod:
    return Pod(ObjectMeta(name=name, namespace=namespace), status=PodStatus(phase))


def partition(name: str, **channels: int) -> NVLinkPartition:
    """Channels by the name of the ComputeDomain."""
    assigned = tuple(
        ChannelAssignment(
            number, ChannelState.ASSIGNED, DomainReference("team", domain_name, f"uid-{domain_name}"), ""
        )
        for domain_name, number in channels.items()
    )
    status = NVLinkPartitionStatus(channels=assigned, summary=PartitionSummary(state=PartitionState.UP))
    return NVLinkPartition(AnnotatedMeta(name=name), NVLinkPartitionSpec(24, "imex-%03d"), status)


def resource_slice(of: str, count: int) -> ResourceSlice:
    devices = tuple(Device(f"channel-{number}") for number in range(count))
    return ResourceSlice(ObjectMeta(name=of), ResourceSliceSpec(DRIVER, Pool(of, 1, 1), of, devices))


def names(groups: dict[str, list[Node]]) -> dict[str, list[str]]:
    return {name: [one.metadata.name for one in nodes] for name, nodes in groups.items()}


def test_racks_and_nodes_are_in_natural_order() -> None:
    found = Snapshot(nodes=[node(name) for name in ("r1-n0", "r0-n10", "r0-n2", "r0-n0")])
    assert names(group_by_rack(found)) == {"r0": ["r0-n0", "r0-n2", "r0-n10"], "r1": ["r1-n0"]}


def test_a_node_whose_partition_is_not_known_yet_is_grouped_with_nodes_of_similar_names() -> None:
    found = Snapshot(nodes=[node("r0-n0"), node("r0-n1")], nvlink_nodes=[nvlink_node("r0-n0")])
    assert names(group_by_rack(found)) == {"r0": ["r0-n0", "r0-n1"]}


def test_a_rack_with_several_partitions_is_shown_as_several_racks() -> None:
    found = Snapshot(
        nodes=[node("r0-n0"), node("r0-n1")],
        nvlink_nodes=[nvlink_node("r0-n0", "u.1"), nvlink_node("r0-n1", "u.2")],
    )
    assert names(group_by_rack(found)) == {"r0.1": ["r0-n0"], "r0.2": ["r0-n1"]}


def test_nodes_with_unrelated_names_are_grouped_by_partition() -> None:
    found = Snapshot(
        nodes=[node(name) for name in ("gab1", "gcd2", "gef3")],
        nvlink_nodes=[
            nvlink_node("gab1", "aaaabbbb-cc.1"),
            nvlink_node("gef3", "aaaabbbb-cc.1"),
            nvlink_node("gcd2", "ddddeeee-ff.1"),
        ],
    )
    assert names(group_by_rack(found)) == {"aaaabbbb": ["gab1", "gef3"], "gc": ["gcd2"]}


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("r0-n07", "r0"), ("gb-rack-3-7", "gb-rack-3"), ("worker12", "worke"), ("17", "17"), ("alpha", "alpha")],
)
def test_the_prefix_of_a_node_name_is_the_rack_name(name: str, prefix: str) -> None:
    assert name_prefix(name) == prefix


def test_natural_order_compares_mixed_names() -> None:
    assert sorted(["x", "n10", "9", "n9"], key=natural_order) == ["9", "n9", "n10", "x"]


def test_the_model_has_devices_claims_channels_and_counts() -> None:
    claims = [
        claim("one", configuration("uid-train"), nodes=("r0-n0",), pods=("p",)),
        claim("two", configuration("uid-train"), nodes=("r0-n0",), pods=("q",)),
        claim("three", configuration("uid-other"), nodes=("r0-n0",), pods=("r",)),
        claim("four", nodes=()),
    ]
    found = Snapshot(
        nodes=[node("r0-n0", {"nvidia.com/gpu.product": "NVIDIA-GB200"})],
        nvlink_nodes=[nvlink_node("r0-n0")],
        partitions=[partition(HERE, train=7, other=8)],
        slices=[resource_slice("r0-n0", 16)],
        claims=claims,
        domains=[OTHER, TRAIN],
        pods=[pod("p"), pod("r", "Pending")],
    )
    model = build_model(found, LETTERS)
    (rack,) = model.racks
    (rack_node,) = rack.nodes
    assert (rack.name, rack.product, rack.state) == ("r0", "GB200", "UP")
    assert (rack_node.ready, rack_node.imex, rack_node.fabric, rack_node.devices) == (True, "READY", "ok", 16)
    assert rack_node.domains == (DomainClaims("A", 2, prepared=True), DomainClaims("B", 1, prepared=False))
    assert model.domains == (
        Domain("A", "team", "train", "NotReady", (RackChannel("r0", 7),)),
        Domain("B", "team", "other", "NotReady", (RackChannel("r0", 8),)),
    )
    assert model.counts == Counts((("reserved", 3), ("pending", 1)), (("Running", 1), ("Pending", 1)))


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
def test_a_claim_counts_as_prepared_while_one_of_its_pods_runs(pods: list[Pod], prepared: bool) -> None:
    found = Snapshot(
        nodes=[node("r0-n0")],
        claims=[claim("one", configuration("uid-train"), nodes=("r0-n0",), pods=("p",))],
        domains=[TRAIN],
        pods=pods,
    )
    assert build_model(found, LETTERS).racks[0].nodes[0].domains == (DomainClaims("A", 1, prepared),)


def test_a_claim_that_is_allocated_but_not_reserved_is_not_prepared() -> None:
    found = Snapshot(nodes=[node("r0-n0")], claims=[claim("one", configuration("uid-train"), nodes=("r0-n0",))])
    model = build_model(found, LETTERS)
    assert model.racks[0].nodes[0].domains == (DomainClaims("A", 1, prepared=False),)
    assert model.counts == Counts((("allocated", 1),))


def test_a_released_channel_is_not_shown() -> None:
    released = partition(HERE, train=1)
    entry = msgspec.structs.replace(released.status.channels[0], state=ChannelState.RELEASED)
    status = msgspec.structs.replace(released.status, channels=(entry,))
    found = Snapshot(partitions=[msgspec.structs.replace(released, status=status)], domains=[TRAIN])
    assert build_model(found, LETTERS).domains == (Domain("A", "team", "train", "NotReady"),)


def test_a_node_without_an_nvlinknode_is_shown_without_imex_state() -> None:
    (rack,) = build_model(Snapshot(nodes=[node("r0-n0", ready=False)]), LETTERS).racks
    (rack_node,) = rack.nodes
    assert (rack_node.ready, rack_node.imex, rack_node.fabric, rack.state) == (False, "", "pending", "")
