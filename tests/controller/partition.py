"""Cards and members of one partition, as the tests of the controller need them."""

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

HERE = PartitionId("7b968a6d.1")
ELSEWHERE = PartitionId("7b968a6d.2")


def card(
    node: str,
    *,
    partition: str = HERE,
    fabric: FabricState = FabricState.OK,
    address: str | None = None,
    slot: int = -1,
    state: ImexState = ImexState.UNAVAILABLE,
    applied: int = 0,
    connected: tuple[int, ...] = (),
    answered: int = 0,
    held: tuple[HeldChannel, ...] = (),
    imex_partition: str = "",
    channel_count: int = 0,
) -> NVLinkNode:
    status = NVLinkNodeStatus(
        fabric=Fabric(fabric),
        partition=partition,
        address=f"10.0.0.{node}" if address is None else address,
        slot=slot,
        imex_state=state,
        applied_generation=applied,
        connected=connected,
        answered_recall=answered,
        held_channels=held,
        imex_partition=imex_partition,
        channel_count=channel_count,
    )
    return NVLinkNode(ObjectMeta(name=node, uid=f"uid-{node}", resource_version="1"), status)


def member(node: str, slot: int, state: MemberState = MemberState.READY, left: int = 0) -> Member:
    return Member(node, slot, f"10.0.0.{node}", state, left)


def partition(
    *members: Member, channels: tuple[ChannelAssignment, ...] = (), name: PartitionId = HERE
) -> NVLinkPartition:
    return NVLinkPartition(
        AnnotatedMeta(name=name, uid=f"uid-{name}", resource_version="1"),
        NVLinkPartitionSpec(slots=24, name_format=name_format(name)),
        NVLinkPartitionStatus(generation=1, members=members, channels=channels),
    )
