"""NVLinkPartition: who is in a partition's IMEX domain, and which ComputeDomain holds which channel.

Written by the controller alone, always against a resourceVersion: the assignment of channels is what keeps
workloads apart, and a lost update here would be a leak.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from imex_dra.api.meta import AnnotatedMeta, Condition, Resource, View, shown


class MemberState(StrEnum):
    JOINING = "Joining"
    READY = "Ready"
    NOT_READY = "NotReady"
    UNKNOWN = "Unknown"
    LEAVING = "Leaving"


class ChannelState(StrEnum):
    ASSIGNED = "Assigned"
    RESTING = "Resting"


CHANNELS_FREE = "ChannelsFree"
"""Condition: False while numbers that were given back can't be used again, with the nodes that are in the way."""

NODES_ADMITTED = "NodesAdmitted"
"""Condition: False while a node that belongs here may not join, with the reason."""


class PartitionState(StrEnum):
    UP = "UP"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"


class NVLinkPartitionSpec(View, frozen=True):
    slots: Annotated[
        int, Meta(ge=1, le=4096, description="Lines in the IMEX nodes file: the rack's size and spares.")
    ]
    name_format: Annotated[
        str,
        Meta(
            description="The name of slot N in the IMEX nodes file; unique to the partition.",
            pattern=r"^[a-z0-9-]+-%03d$",
            max_length=63,
        ),
    ]


class Member(View, frozen=True, gc=False):
    node: Annotated[str, Meta(description="The Node's name.")]
    slot: Annotated[int, Meta(ge=0, description="Its line in the IMEX nodes file.")]
    address: Annotated[str, Meta(description="Where its IMEX daemon listens.")]
    state: Annotated[MemberState, Meta(description="What its card (NVLinkNode) says.")]
    left_generation: Annotated[int, Meta(ge=0, description="When leaving: the first generation without it.")] = 0


class DomainReference(View, frozen=True, gc=False):
    namespace: str
    name: str
    uid: str


class ChannelAssignment(View, frozen=True, gc=False):
    channel: Annotated[int, Meta(ge=0)]
    state: Annotated[
        ChannelState,
        Meta(description="Resting: given back, and not used again until every member said that it let go."),
    ]
    compute_domain: DomainReference
    since: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    all: Annotated[bool, Meta(description="The ComputeDomain may open every channel.")] = False
    released_at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] = ""
    recall: Annotated[
        int, Meta(ge=0, description="When resting: free after every member answered a higher recall than this.")
    ] = 0


class PartitionSummary(View, frozen=True, gc=False):
    nodes: str = ""
    channels: str = ""
    state: PartitionState = shown(PartitionState.DOWN)


class NVLinkPartitionStatus(View, frozen=True):
    generation: Annotated[int, Meta(ge=0, description="Counts the changes of the member list.")] = 0
    members: Annotated[
        tuple[Member, ...],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]}),
    ] = ()
    recall: Annotated[
        int,
        Meta(ge=0, description="Counts how often the members were asked which channels they still hold."),
    ] = 0
    awaited: Annotated[
        tuple[str, ...],
        Meta(
            description="The record was made anew: no number is given before these nodes said what they hold.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    open_generation: Annotated[
        int,
        Meta(ge=0, description="After that: nor before all members run with this member list or a later one."),
    ] = 0
    last_channel: Annotated[int, Meta(ge=0, description="The number that was given last.")] = 0
    channels: Annotated[
        tuple[ChannelAssignment, ...],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["channel"]}),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    summary: PartitionSummary = shown(PartitionSummary())


class NVLinkPartition(View, frozen=True):
    """The nodes that NVLink joins, their IMEX domain, and the channels in use there."""

    metadata: AnnotatedMeta
    spec: Annotated[
        NVLinkPartitionSpec,
        Meta(
            description="The IMEX node map, which must be equal in every daemon; immutable.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "message": "the IMEX node map of a partition can't change"}
                ]
            },
        ),
    ]
    status: NVLinkPartitionStatus = NVLinkPartitionStatus()


NVLINK_PARTITIONS = Resource(NVLinkPartition, "imex-dra.io", "v1alpha1", "nvlinkpartitions", namespaced=False)
