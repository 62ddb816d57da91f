"""Names in API objects and on a node's disk: the driver, labels, annotations, finalizers, paths.

NVIDIA's DRA driver uses the same names for everything that a user's manifest can contain.
"""

import hashlib
from typing import NewType

DRIVER = "compute-domain.nvidia.com"
"""Name of the DRA driver, and of its plugin directory on a node."""

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
READINESS_ANNOTATION = "imex-dra.io/readiness"
"""Of a ComputeDomain. Its claims carry it as a label: annotations may be large, and are not cached."""
READINESS_MEMBERS = "members"
PLACEMENT_ANNOTATION = "imex-dra.io/placement"
"""Of a ComputeDomain, and a label of a namespace: what the webhook adds to pods."""
SAME_PARTITION = "same-partition"
FORGET_ANNOTATION = "imex-dra.io/forget"
"""On an NVLinkPartition: names of nodes that will not return, separated by commas."""

LEASE = "imex-controller"
NAMESPACE = "imex-dra"

DAEMON_SECRET = "imex-daemon-tls"
"""The certificate of IMEX daemons, its key, and the certificate of its authority; mounted into daemon pods."""
AUTHORITY_SECRET = "imex-daemon-ca"
"""The certificate authority with its key. Only the controller reads it."""
DAEMON_NAME = "imex-daemon"
"""The name in the certificate. All daemons share it (IMEX_SECURITY_TARGET_OVERRIDE): the certificate says that a
process is a daemon of this cluster, and the member list says which one.
"""
WEBHOOK_SECRET = "imex-webhook-tls"
"""The certificate of `imex webhook`, from the same authority; mounted into its pods."""
WEBHOOK = "imex-webhook"
"""The Service, and the webhook configurations into which the controller writes the authority."""
NOT_AFTER_ANNOTATION = "imex-dra.io/not-after"
"""On all of them: when the certificate expires."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "imex-dra"
"""On every ResourceSlice of ours: one of the same driver name without it was published by another driver."""

IMEX_DIRECTORY = "/run/imex-dra/imex"
"""Which `imex node` shares with the supervisor of nvidia-imex. It must not survive a reboot."""

NODE_PORT = 8081
"""On which `imex node` serves metrics, probes and pages, unless it is told otherwise."""
IMEX_PAGE = "/imex"
"""What nvidia-imex-ctl said last."""

IMEX_PORTS = (50000, 50005)
"""On which nvidia-imex listens: for other daemons, and for nvidia-imex-ctl of all members."""

CHANNEL_DEVICE_DIRECTORY = "/dev/nvidia-caps-imex-channels"
CHANNEL_DEVICE_CLASS = "nvidia-caps-imex-channels"
HOST_DEVICE_DIRECTORY = "/dev/imex-dra"
"""On the host: device nodes of prepared claims. See `hardware.channelnodes`."""

CDI_VENDOR = "imex-dra.io"
CDI_CLASS = "channel"

PartitionId = NewType("PartitionId", str)
"""`<cluster UUID>.<clique ID>`; the clique ID alone is not unique. Never parsed."""


def partition_id(cluster_uuid: str, clique: int) -> PartitionId:
    return PartitionId(f"{cluster_uuid.lower()}.{clique}")


def name_format(partition: PartitionId) -> str:
    """Format of the names in a partition's IMEX nodes file, by index.

    The names must be unique to the partition, because IMEX has no other domain identity: with equal names, a
    daemon would accept a daemon of another partition at a recycled address.
    """
    digest = hashlib.sha256(partition.encode()).hexdigest()[:8]
    return f"imex-{digest}-%03d"


def channel_path(channel: int) -> str:
    return f"{CHANNEL_DEVICE_DIRECTORY}/channel{channel}"
