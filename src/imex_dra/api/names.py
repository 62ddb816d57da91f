"""Every name that stands on the wire, in a cluster or on a node's disk, defined once.

The peer's names are kept wherever a manifest written for the peer could contain them.
"""

import hashlib
from typing import NewType

DRIVER = "compute-domain.nvidia.com"
"""Driver name in ResourceSlices, claims and opaque configs; also the directory of the node plugin."""

CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
CHANNEL_REQUEST = "channel"

DOMAIN_LABEL = "resource.nvidia.com/computeDomain"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
ALL_CHANNELS_LABEL = "imex-dra.io/all-channels"
ALL_CHANNELS_ALLOWED = "allowed"

DOMAIN_FINALIZER = "imex-dra.io/computedomain"
PARTITION_FINALIZER = "imex-dra.io/nvlinkpartition"
RELEASE_ANNOTATION = "imex-dra.io/release"
RELEASE_NOW = "now"

LEASE = "imex-controller"
NAMESPACE = "imex-dra"

CHANNEL_DEVICE_DIRECTORY = "/dev/nvidia-caps-imex-channels"
CHANNEL_DEVICE_CLASS = "nvidia-caps-imex-channels"

CDI_VENDOR = "imex-dra.io"
CDI_CLASS = "channel"

PartitionId = NewType("PartitionId", str)
"""`<cluster uuid>.<clique id>`: opaque in code. The clique id alone is a sentinel on many racks."""


def partition_id(cluster_uuid: str, clique: int) -> PartitionId:
    return PartitionId(f"{cluster_uuid.lower()}.{clique}")


def name_format(partition: PartitionId) -> str:
    """The names in a partition's IMEX nodes file.

    IMEX has no other domain identity than these names, so they must be unique to the partition: with equal
    names a daemon accepts a stranger at a recycled address.
    """
    digest = hashlib.sha256(partition.encode()).hexdigest()[:8]
    return f"imex-{digest}-%03d"


def channel_path(channel: int) -> str:
    return f"{CHANNEL_DEVICE_DIRECTORY}/channel{channel}"
