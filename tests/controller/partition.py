"""NVLinkNodes, members and NVLinkPartitions for the controller's tests."""

from datetime import UTC, datetime

from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta, ObjectMeta
from imex_dra.api.names import PartitionId, name_format
from imex_dra.api.nvlinknode import (
    Fabric,
    FabricState,
    HeldChannel,
    ImexState,
    NVLinkNode,
    NVLinkNodeStatus,
)
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = PartitionId("7b968a6d.1")
ELSEWHERE = PartitionId("7b968a6d.2")


def nvlink_node(
    node: str,
    *,
    partition: str = HERE,
    fabric: FabricState = FabricState.OK,
    address: str | None = None,
    index: int = -1,
    state: ImexState = ImexState.UNAVAILABLE,
    applied: int = 0,
    unreachable: tuple[str, ...] = (),
    prepared: tuple[str, ...] = (),
    fabric_reason: str = "",
    acknowledged: int = 0,
    held: tuple[HeldChannel, ...] = (),
    imex_partition: str = "",
    channel_count: int = 0,
    driver_version: str = "",
    product: str = "",
    max_claims: int = 0,
    started_at: str = "",
) -> NVLinkNode:
    status = NVLinkNodeStatus(
        fabric=Fabric(fabric, fabric_reason),
        partition=partition,
        address=f"10.0.0.{node}" if address is None else address,
        index=index,
        imex_state=state,
        applied_generation=applied,
        unreachable=unreachable,
        prepared_claims=prepared,
        acknowledged_epoch=acknowledged,
        held_channels=held,
        imex_partition=imex_partition,
        channel_count=channel_count,
        driver_version=driver_version,
        product=product,
        max_claims=max_claims,
        imex_started_at=started_at,
    )
    return NVLinkNode(ObjectMeta(name=node, uid=f"uid-{node}", resource_version="1"), status)


def member(
    node: str, index: int, state: MemberState = MemberState.READY, left: int = 0, since: str = ""
) -> Member:
    return Member(node, index, f"10.0.0.{node}", state, left, since)


def undated(found: Member) -> Member:
    return structs.replace(found, since="")


def partition(
    *members: Member, channels: tuple[ChannelAssignment, ...] = (), name: PartitionId = HERE
) -> NVLinkPartition:
    return NVLinkPartition(
        AnnotatedMeta(name=name, uid=f"uid-{name}", resource_version="1"),
        NVLinkPartitionSpec(max_nodes=24, name_format=name_format(name)),
        NVLinkPartitionStatus(generation=1, members=members, channels=channels),
    )
