"""The kinds of objects that the API serves: built-in ones, and those of our CRDs."""

from typing import NamedTuple


class Kind(NamedTuple):
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = True
    """Whether `status` is a subresource: writes to the object ignore it, and writes to it ignore all else."""

    tracks_managers: bool = False
    """Whether `metadata.managedFields` is kept; server-side apply needs it."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in error messages: `computedomains.resource.nvidia.com`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_DRA = "resource.k8s.io"

KINDS = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind("", "v1", "nodes", "Node", namespaced=False, tracks_managers=True),
    Kind("", "v1", "pods", "Pod"),
    Kind("apps", "v1", "daemonsets", "DaemonSet"),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", has_status=False),
    Kind("events.k8s.io", "v1", "events", "Event", has_status=False),
    Kind(_DRA, "v1", "resourceclaims", "ResourceClaim"),
    Kind(_DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", has_status=False),
    Kind(_DRA, "v1", "resourceslices", "ResourceSlice", namespaced=False, has_status=False),
    Kind(_DRA, "v1", "deviceclasses", "DeviceClass", namespaced=False, has_status=False),
    Kind("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain"),
    Kind("imex-dra.io", "v1alpha1", "nvlinkpartitions", "NVLinkPartition", namespaced=False),
    Kind("imex-dra.io", "v1alpha1", "nvlinknodes", "NVLinkNode", namespaced=False),
)

NAMESPACES = KINDS[0]
PODS = KINDS[2]

_BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}


def find_kind(group: str, version: str, plural: str) -> Kind | None:
    return _BY_PATH.get((group, version, plural))
