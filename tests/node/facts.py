"""What a node may know, from a healthy beginning that a test then spoils."""

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
from imex_dra.hardware.protocol import Reading
from imex_dra.imex.link import DaemonState
from imex_dra.node.readiness import Knowledge, place_of

NODE = "n1"
PARTITION = PartitionId("7b968a6d.1")
BOOT = "boot-1"
READING = Reading(Fabric(FabricState.OK), PARTITION, "580.95.05", 2048, BOOT)
DAEMON = DaemonState(ImexState.READY, PARTITION, slot=0, generation=5, connected=(1,))


def member(node: str = NODE, slot: int = 0, state: MemberState = MemberState.READY) -> Member:
    return Member(node, slot, f"10.0.0.{slot}", state)


def assigned(
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
        NVLinkPartitionSpec(slots=24, name_format=name_format(name)),
        NVLinkPartitionStatus(generation=5, members=members, channels=channels),
    )


HEALTHY = Knowledge(NODE, READING, DAEMON, partition(member(), member("n2", 1), channels=(assigned(),)), PARTITION)


def reading(state: FabricState, reason: str = "") -> Reading:
    """Of a fabric in this state; the partition is known only if it is ok."""
    return structs.replace(
        READING, fabric=Fabric(state, reason), partition=PARTITION if state is FabricState.OK else PartitionId("")
    )


def daemon(state: ImexState = ImexState.READY, **facts: Any) -> DaemonState:
    return structs.replace(DAEMON, state=state, **facts)


def but(**facts: Any) -> Knowledge:
    """Everything is well, but for these facts."""
    place = place_of(facts.get("reading", READING), PARTITION)
    return structs.replace(HEALTHY, **{"place": place, **facts})
