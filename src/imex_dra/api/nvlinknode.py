"""NVLinkNode: a node's card. Written by that node alone, and only when something changes.

It is an object of its own, not part of a ResourceSlice, because the kubelet deletes the slices at every
start and half a minute after the plugin is gone, and membership must not depend on that.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from imex_dra.api.meta import ObjectMeta, Resource, View, shown


class FabricState(StrEnum):
    NONE = "none"
    PENDING = "pending"
    OK = "ok"
    BROKEN = "broken"


class IsolationState(StrEnum):
    ENFORCED = "enforced"
    OPEN = "open"


class ImexState(StrEnum):
    """What `nvidia-imex-ctl -q` prints, and UNAVAILABLE when nobody answers."""

    INITIALIZING = "INITIALIZING"
    STARTING_AUTH_SERVER = "STARTING_AUTH_SERVER"
    WAITING_FOR_PEERS = "WAITING_FOR_PEERS"
    WAITING_FOR_RECOVERY = "WAITING_FOR_RECOVERY"
    INIT_GPU = "INIT_GPU"
    READY = "READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    UNAVAILABLE = "UNAVAILABLE"


class ManagedBy(StrEnum):
    DRIVER = "driver"
    HOST = "host"


class Fabric(View, frozen=True, gc=False):
    state: Annotated[
        FabricState,
        Meta(description="none: proven to have no multi-node NVLink. pending: not known yet."),
    ] = shown(FabricState.PENDING)
    reason: Annotated[
        str, Meta(description="One sentence on why it is not ok, or, if it is, on what is limited.")
    ] = ""


class Isolation(View, frozen=True, gc=False):
    state: Annotated[
        IsolationState,
        Meta(description="open: something else on the node hands out channels behind the driver's back."),
    ] = shown(IsolationState.ENFORCED)
    reason: str = ""


class HeldChannel(View, frozen=True, gc=False, order=True):
    """A number alone says nothing once a record is lost or a node has moved."""

    partition: str
    channel: Annotated[int, Meta(ge=0)]
    compute_domain: Annotated[str, Meta(description="The ComputeDomain's UID.")]


class NVLinkNodeStatus(View, frozen=True):
    fabric: Fabric = shown(Fabric())
    partition: Annotated[str, Meta(description="The NVLinkPartition that the hardware names.")] = ""
    address: Annotated[str, Meta(description="Where the node's IMEX daemon listens.")] = ""
    slot: Annotated[int, Meta(ge=-1, description="The slot as the running daemon reports it; -1: none.")] = -1
    imex_state: Annotated[ImexState, Meta(description="As nvidia-imex-ctl says.")] = shown(ImexState.UNAVAILABLE)
    connected: Annotated[
        tuple[int, ...],
        Meta(
            description="The slots that are connected in both directions.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    driver_version: str = ""
    channel_count: Annotated[int, Meta(ge=0, description="Channels that the kernel driver offers.")] = 0
    boot_id: str = field(name="bootID", default="")
    imex_partition: Annotated[
        str, Meta(description="The partition whose member list the daemon runs with; empty: it does not run.")
    ] = ""
    applied_generation: Annotated[
        int, Meta(ge=0, description="The generation of the member list that the daemon runs with.")
    ] = 0
    answered_recall: Annotated[
        int,
        Meta(
            ge=0, description="The partition's recall that heldChannels answer; no older grant is taken any more."
        ),
    ] = 0
    held_channels: Annotated[
        tuple[HeldChannel, ...],
        Meta(
            description="Channels of the claims prepared on the node since it booted, as of the answer.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    isolation: Isolation = shown(Isolation())
    managed_by: ManagedBy = shown(ManagedBy.DRIVER)
    problem: Annotated[str, Meta(description="One sentence on what keeps the node from serving.")] = ""


class NVLinkNode(View, frozen=True):
    """What one node knows about its NVLink fabric, its IMEX daemon and the channels it holds."""

    metadata: ObjectMeta
    status: NVLinkNodeStatus = NVLinkNodeStatus()


NVLINK_NODES = Resource(NVLinkNode, "imex-dra.io", "v1alpha1", "nvlinknodes", namespaced=False)
