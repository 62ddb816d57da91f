"""NVLinkPartition: the members of a partition's IMEX domain, and which ComputeDomain holds which channel.

Only the controller writes it, always with a resourceVersion: channel assignment isolates workloads, so a lost
update would be a leak. `docs/design/channel-reuse.md` and `docs/design/membership.md` explain the counters.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from imex_dra.api.limits import ADDRESS, MAX_ADDRESS, MAX_CHANNELS, MAX_COUNTER, MAX_NODES, MAX_UID
from imex_dra.api.meta import AnnotatedMeta, Condition, Resource, View, shown
from imex_dra.api.names import FORGET_ANNOTATION


class MemberState(StrEnum):
    """Unknown: its Node is not Ready, or it does not report. Suspended: Unknown for long and unreachable for every
    live member; it keeps its index and address, gets no channel, and must be admitted again.
    """

    JOINING = "Joining"
    READY = "Ready"
    NOT_READY = "NotReady"
    UNKNOWN = "Unknown"
    SUSPENDED = "Suspended"
    LEAVING = "Leaving"


class ChannelState(StrEnum):
    ASSIGNED = "Assigned"
    RELEASED = "Released"


READY = "Ready"
"""Condition: every member that is not Suspended or Leaving is Ready, and all of them are connected. The message
names the members that are the cause."""

NOT_CONNECTED = "NotConnected"
"""Condition: True while two members that are alive cannot reach each other; the message names the pairs."""

VERSION_SKEW = "VersionSkew"
"""Condition: True while members run different versions of the GPU driver; the message names the groups."""

CHANNEL_SKEW = "ChannelSkew"
"""Condition: True while the GPU drivers of members offer different numbers of channels; the message names the
groups."""

DELETION_BLOCKED = "DeletionBlocked"
"""Condition: True while a deleted NVLinkPartition is still in use; the message says by what."""

CHANNELS_REUSABLE = "ChannelsReusable"
"""Condition: False while released channels cannot be reused; the message names the nodes that block it."""

NODES_ADMITTED = "NodesAdmitted"
"""Condition: False while a node of this partition cannot join; the message says why."""


CLIQUE_LABELS = "CliqueLabels"
"""Condition: False while a node of this partition has a clique label of another one that we did not set."""


class PartitionState(StrEnum):
    UP = "UP"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"


class NVLinkPartitionSpec(View, frozen=True):
    max_nodes: Annotated[
        int,
        Meta(
            ge=1, le=MAX_NODES, description="Number of lines in the IMEX nodes file: the rack's nodes, and spares."
        ),
    ]
    name_format: Annotated[
        str,
        Meta(
            description="Format of the names in the IMEX nodes file, by index; unique to the partition.",
            pattern=r"^[a-z0-9-]+-%03d$",
            max_length=63,
        ),
    ]


class Member(View, frozen=True, gc=False):
    """A node in the partition's IMEX domain."""

    node: Annotated[str, Meta(description="Name of the Node.")]
    index: Annotated[
        int, Meta(ge=0, le=MAX_NODES - 1, description="Line of the node in the IMEX nodes file, counted from 0.")
    ]
    address: Annotated[
        str, Meta(pattern=ADDRESS, max_length=MAX_ADDRESS, description="IP address of its IMEX daemon.")
    ]
    state: Annotated[MemberState, Meta(description="State of the member, from its NVLinkNode and its Node.")]
    left_generation: Annotated[
        int, Meta(ge=0, le=MAX_COUNTER, description="First generation without this member, if it is leaving.")
    ] = 0
    since: Annotated[
        str, Meta(description="When the state last changed.", extra_json_schema={"format": "date-time"})
    ] = ""
    suspended_epoch: Annotated[
        int, Meta(ge=0, le=MAX_COUNTER, description="Epoch in which the member was suspended, if it is.")
    ] = 0
    boot_id: Annotated[
        str,
        Meta(
            max_length=MAX_UID,
            description="Boot ID of its kernel, as it last reported it: with another one, everything that it had"
            " imported before is gone.",
        ),
    ] = field(name="bootID", default="")


class DomainReference(View, frozen=True, gc=False):
    """A ComputeDomain."""

    namespace: Annotated[str, Meta(description="Namespace of the ComputeDomain.")]
    name: Annotated[str, Meta(description="Name of the ComputeDomain.")]
    uid: Annotated[str, Meta(description="UID of the ComputeDomain.")]


class ChannelAssignment(View, frozen=True, gc=False):
    """A channel that is assigned, or was and is not yet reusable."""

    channel: Annotated[int, Meta(ge=0, le=MAX_CHANNELS - 1, description="Channel number.")]
    state: Annotated[
        ChannelState,
        Meta(description="Released: not reused until every member has confirmed that it no longer holds it."),
    ]
    compute_domain: Annotated[
        DomainReference, Meta(description="ComputeDomain that holds the channel, or held it.")
    ]
    assigned_at: Annotated[
        str, Meta(description="When the channel was assigned.", extra_json_schema={"format": "date-time"})
    ]
    all_channels: Annotated[
        bool, Meta(description="Whether the ComputeDomain may open every channel of the partition.")
    ] = False
    released_at: Annotated[
        str, Meta(description="When the channel was released.", extra_json_schema={"format": "date-time"})
    ] = ""
    released_epoch: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNTER,
            description="Epoch in which the channel was released. It is reusable after every member acknowledged a"
            " later epoch and no node holds it.",
        ),
    ] = 0
    assigned_epoch: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNTER,
            description="Epoch in which the channel was assigned; 0 if that is not known. A member that was"
            " suspended in an earlier one cannot hold it.",
        ),
    ] = 0


class PartitionSummary(View, frozen=True, gc=False):
    """Values for the columns of kubectl get."""

    nodes: Annotated[str, Meta(description="Ready members, and all members.")] = ""
    channels: Annotated[str, Meta(description="Number of assigned channels.")] = ""
    state: Annotated[
        PartitionState, Meta(description="UP: every member is ready. DOWN: none is. DEGRADED: some are.")
    ] = shown(PartitionState.DOWN)


class NVLinkPartitionStatus(View, frozen=True):
    """Observed state."""

    generation: Annotated[
        int, Meta(ge=0, le=MAX_COUNTER, description="Incremented with every change of the member list.")
    ] = 0
    members: Annotated[
        tuple[Member, ...],
        Meta(
            description="Nodes in the IMEX domain.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]},
        ),
    ] = ()
    freed_indexes: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=MAX_NODES - 1)], ...],
        Meta(
            description="Indexes of nodes that have left, oldest first; they are reused in this order, after those"
            " that were never used.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    epoch: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNTER,
            description="Incremented when members must report which channels they hold. Members acknowledge it in"
            " their NVLinkNode.",
        ),
    ] = 0
    pending_reports: Annotated[
        tuple[str, ...],
        Meta(
            description="Nodes that must report their channels before a recovered partition assigns new ones.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    required_generation: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNTER,
            description="Generation that every member must apply before the partition assigns new channels; 0 if"
            " there is no such requirement.",
        ),
    ] = 0
    last_channel: Annotated[
        int, Meta(ge=0, le=MAX_CHANNELS - 1, description="Channel that was assigned last.")
    ] = 0
    node_list_digest: Annotated[
        str,
        Meta(
            max_length=MAX_UID,
            description="If hosts manage the IMEX daemons: the digest of the node list that most members have, and"
            " that each of them must have.",
        ),
    ] = ""
    channels: Annotated[
        tuple[ChannelAssignment, ...],
        Meta(
            description="Channels that are assigned, or released and not yet reusable.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["channel"]},
        ),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Ready; and NotConnected, VersionSkew, ChannelSkew, ChannelsReusable, NodesAdmitted,"
            " CliqueLabels, OtherDriver and DeletionBlocked once they have had something to say.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    summary: Annotated[PartitionSummary, Meta(description="Values for the columns of kubectl get.")] = shown(
        PartitionSummary()
    )


class NVLinkPartition(View, frozen=True):
    """The nodes that share one NVLink fabric, their IMEX domain, and its channels."""

    metadata: AnnotatedMeta
    spec: Annotated[
        NVLinkPartitionSpec,
        Meta(
            description="The IMEX node map, which must be the same in every daemon. Immutable.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "message": "the IMEX node map of a partition is immutable"}
                ]
            },
        ),
    ]
    status: NVLinkPartitionStatus = NVLinkPartitionStatus()

    @property
    def forgotten_nodes(self) -> set[str]:
        """Nodes that an administrator does not expect to return (`imex forget-node`)."""
        names = self.metadata.annotations.get(FORGET_ANNOTATION, "").split(",")
        return {name.strip() for name in names} - {""}


NVLINK_PARTITIONS = Resource(NVLinkPartition, "imex-dra.io", "v1alpha1", "nvlinkpartitions", namespaced=False)
