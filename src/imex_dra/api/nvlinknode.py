"""NVLinkNode: one node's report about itself. Only that node writes it, and only when something changes.

It is an object of its own, not part of a ResourceSlice: the kubelet deletes a driver's slices when it starts, and
30 s after the driver disconnects, and membership must not depend on that.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from imex_dra.api.limits import (
    ADDRESS,
    MAX_ADDRESS,
    MAX_CHANNELS,
    MAX_COUNTER,
    MAX_GPUS,
    MAX_NAME,
    MAX_NODES,
    MAX_PRODUCT,
    MAX_TEXT,
    MAX_TIME,
    MAX_UID,
)
from imex_dra.api.meta import Condition, ObjectMeta, Resource, View, shown

READY = "Ready"
CONNECTED = "Connected"
"""Condition: Unknown while the IMEX daemon is not READY, or nvidia-imex-ctl does not report its connections."""


_MAX_HELD = 4096
"""Claims on a node, and their channels. A node offers far fewer at a time (`imex node --max-claims`)."""


class FabricState(StrEnum):
    NONE = "none"
    PENDING = "pending"
    OK = "ok"
    BROKEN = "broken"


class IsolationState(StrEnum):
    ENFORCED = "enforced"
    OPEN = "open"


class ImexState(StrEnum):
    """What `nvidia-imex-ctl -q` prints; UNAVAILABLE if it gets no answer."""

    INITIALIZING = "INITIALIZING"
    STARTING_AUTH_SERVER = "STARTING_AUTH_SERVER"
    WAITING_FOR_PEERS = "WAITING_FOR_PEERS"
    WAITING_FOR_RECOVERY = "WAITING_FOR_RECOVERY"
    INIT_GPU = "INIT_GPU"
    READY = "READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    UNAVAILABLE = "UNAVAILABLE"


class Fabric(View, frozen=True, gc=False):
    """The state of the node's NVLink fabric."""

    state: Annotated[
        FabricState,
        Meta(
            description="ok: registered. broken: unusable until repaired. pending: not known yet. none: the node"
            " is proven to have no multi-node NVLink."
        ),
    ] = shown(FabricState.PENDING)
    reason: Annotated[
        str,
        Meta(
            max_length=MAX_TEXT,
            description="Why the fabric is not ok, or what is degraded while it is ok; one sentence.",
        ),
    ] = ""


class GpuFabric(View, frozen=True, gc=False):
    """One GPU's part of the node's fabric."""

    index: Annotated[int, Meta(ge=0, le=MAX_GPUS - 1, description="Index of the GPU in NVML.")]
    state: Annotated[FabricState, Meta(description="As in fabric; none: this GPU has no multi-node NVLink.")] = (
        shown(FabricState.PENDING)
    )
    reason: Annotated[
        str, Meta(max_length=MAX_TEXT, description="Why it is not ok, or what is degraded; one sentence.")
    ] = ""


class Isolation(View, frozen=True, gc=False):
    """Whether only this driver hands out channels on the node."""

    state: Annotated[
        IsolationState,
        Meta(description="open: another component on the node can give channels to containers."),
    ] = shown(IsolationState.ENFORCED)
    reason: Annotated[str, Meta(max_length=MAX_TEXT, description="Which component, and how; one sentence.")] = ""


class HeldChannel(View, frozen=True, gc=False, order=True):
    """A channel that processes on the node may have open."""

    partition: Annotated[str, Meta(max_length=MAX_NAME, description="NVLinkPartition that assigned the channel.")]
    channel: Annotated[int, Meta(ge=0, le=MAX_CHANNELS - 1, description="Channel number.")]
    compute_domain: Annotated[
        str, Meta(max_length=MAX_UID, description="UID of the ComputeDomain that it was assigned to.")
    ]


class HostNodeList(View, frozen=True, gc=False):
    """The node list of an IMEX daemon that the host manages."""

    digest: Annotated[
        str,
        Meta(
            max_length=MAX_UID,
            description="Digest of its entries, in their order; empty while the list cannot be read.",
        ),
    ] = ""
    size: Annotated[int, Meta(ge=0, le=MAX_COUNTER, description="Number of its entries.")] = 0


class NVLinkNodeStatus(View, frozen=True):
    """What the node reports."""

    fabric: Annotated[Fabric, Meta(description="State of the NVLink fabric.")] = shown(Fabric())
    partition: Annotated[
        str, Meta(max_length=MAX_NAME, description="NVLinkPartition of the node, as its GPUs report it.")
    ] = ""
    address: Annotated[
        str,
        Meta(pattern=ADDRESS, max_length=MAX_ADDRESS, description="IP address on which the IMEX daemon listens."),
    ] = ""
    index: Annotated[
        int,
        Meta(ge=-1, le=MAX_NODES - 1, description="Index that the running IMEX daemon uses; -1 if it has none."),
    ] = -1
    imex_state: Annotated[ImexState, Meta(description="State that nvidia-imex-ctl reports.")] = shown(
        ImexState.UNAVAILABLE
    )
    imex_started_at: Annotated[
        str,
        Meta(
            max_length=MAX_TIME,
            description="When the IMEX daemon that was READY last was started. A restart ends imports of this"
            " node's GPU memory.",
            extra_json_schema={"format": "date-time"},
        ),
    ] = ""
    driver_version: Annotated[str, Meta(max_length=MAX_UID, description="Version of the GPU driver.")] = ""
    product: Annotated[
        str,
        Meta(
            max_length=MAX_PRODUCT,
            description="Product name of the GPUs; it decides how many nodes a new NVLinkPartition can have.",
        ),
    ] = ""
    gpu_count: Annotated[
        int, Meta(ge=0, le=MAX_GPUS, description="Number of NVIDIA GPUs on the PCI bus; 0 if it cannot be read.")
    ] = 0
    gpus: Annotated[
        tuple[GpuFabric, ...],
        Meta(
            max_length=MAX_GPUS,
            description="The fabric of each GPU that NVML lists.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["index"]},
        ),
    ] = ()
    channel_count: Annotated[
        int, Meta(ge=0, le=MAX_CHANNELS, description="Number of channels that the GPU driver offers.")
    ] = 0
    max_claims: Annotated[
        int,
        Meta(
            ge=0,
            le=128,
            description="Number of claims that the node can hold at a time; 0 if it is not known.",
        ),
    ] = 0
    boot_id: Annotated[str, Meta(max_length=MAX_UID, description="Boot ID of the node's kernel.")] = field(
        name="bootID", default=""
    )
    imex_partition: Annotated[
        str,
        Meta(
            max_length=MAX_NAME,
            description="NVLinkPartition whose member list the IMEX daemon applied; empty if it does not run.",
        ),
    ] = ""
    applied_generation: Annotated[
        int,
        Meta(ge=0, le=MAX_COUNTER, description="Generation of the member list that the IMEX daemon applied."),
    ] = 0
    acknowledged_epoch: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNTER,
            description="Epoch of the partition that the node acknowledged. heldChannels is complete as of this"
            " epoch, and the node accepts no assignment from an earlier one.",
        ),
    ] = 0
    held_channels: Annotated[
        tuple[HeldChannel, ...],
        Meta(
            max_length=_MAX_HELD,
            description="Channels of claims prepared since the node booted, as of acknowledgedEpoch.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    isolation: Annotated[Isolation, Meta(description="Whether channels are isolated on this node.")] = shown(
        Isolation()
    )
    host_node_list: Annotated[
        HostNodeList | None,
        Meta(
            description="Only with imex node --imex host-managed, where this driver does not manage the IMEX"
            " daemon: all members of a partition must have the same node list."
        ),
    ] = None
    unreachable: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_NAME)], ...],
        Meta(
            max_length=MAX_NODES,
            description="Members that the IMEX daemon could not reach for at least five seconds, although the"
            " partition does not list them as NotReady or Joining; node names. Empty while the daemon is not"
            " READY.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    prepared_claims: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_UID)], ...],
        Meta(
            max_length=_MAX_HELD,
            description="UIDs of the ResourceClaims that are prepared on the node. A claim is added about a second"
            " after it was prepared, and removed when something else is written.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Ready: whether the node can serve claims. Connected: whether its IMEX daemon reaches all"
            " other members. OtherDriver: True while another driver of the same name serves the node.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()


class NVLinkNode(View, frozen=True):
    """One node's report about its NVLink fabric, its IMEX daemon and the channels it holds."""

    metadata: ObjectMeta
    status: NVLinkNodeStatus = NVLinkNodeStatus()


NVLINK_NODES = Resource(NVLinkNode, "imex-dra.io", "v1alpha1", "nvlinknodes", namespaced=False)
