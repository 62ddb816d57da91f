"""Snapshots of a healthy node, and their parts, for tests to change one fact at a time."""

from typing import Any

from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.names import PartitionId, name_format
from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.daemon.state import DaemonState
from imex_dra.hardware.protocol import Reading
from imex_dra.node.grant import Snapshot, partition_of

NODE = "n1"
PARTITION = PartitionId("7b968a6d.1")
OTHER_PARTITION = PartitionId("7b968a6d.2")
BOOT_ID = "boot-1"
READING = Reading(Fabric(FabricState.OK), PARTITION, "580.95.05", 2048, BOOT_ID)
DAEMON = DaemonState(ImexState.READY, PARTITION, index=0, generation=5, connected=(1,))


def member(node: str = NODE, index: int = 0, state: MemberState = MemberState.READY) -> Member:
    return Member(node, index, f"10.0.0.{index}", state)


def assignment(
    channel: int = 7,
    uid: str = "uid-job",
    *,
    namespace: str = "team",
    all_channels: bool = False,
    state: ChannelState = ChannelState.ASSIGNED,
) -> ChannelAssignment:
    return ChannelAssignment(
        channel, state, DomainReference(namespace, "job", uid), "2026-01-01T00:00:00Z", all_channels
    )


def partition(
    *members: Member, channels: tuple[ChannelAssignment, ...] = (), name: PartitionId = PARTITION
) -> NVLinkPartition:
    return NVLinkPartition(
        AnnotatedMeta(name=name),
        NVLinkPartitionSpec(max_nodes=24, name_format=name_format(name)),
        NVLinkPartitionStatus(generation=5, members=members, channels=channels),
    )


HEALTHY = Snapshot(
    NODE,
    READING,
    DAEMON,
    PARTITION,
    partition(member(), member("n2", 1), channels=(assignment(),)),
    address="10.0.0.1",
)


def reading(state: FabricState, reason: str = "") -> Reading:
    """Only a fabric that is ok names a partition."""
    return structs.replace(
        READING, fabric=Fabric(state, reason), partition=PARTITION if state is FabricState.OK else PartitionId("")
    )


def daemon(state: ImexState = ImexState.READY, **changes: Any) -> DaemonState:
    return structs.replace(DAEMON, state=state, **changes)


def healthy_except(**changes: Any) -> Snapshot:
    partition_id = partition_of(changes.get("reading", READING), PARTITION)
    return structs.replace(HEALTHY, **{"partition_id": partition_id, **changes})
