"""The kinds of objects that an API serves: built-in ones, and those of CRDs."""

from collections.abc import Iterable, Iterator
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

    is_custom: bool = False
    """Whether a CRD defines it."""

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
"""What the driver itself uses; all that a simulation needs."""

NAMESPACES, NODES, PODS = KINDS[:3]
EVENTS, CLAIMS, TEMPLATES, SLICES, CLASSES = KINDS[5:10]

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"

CLUSTER_ROLES = Kind(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False, has_status=False)
CRDS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
CORE_EVENTS = Kind("", "v1", "events", "Event", has_status=False)
"""The same objects as those of `events.k8s.io`, with other names of fields (`events`)."""

SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", has_status=False)
STATEFUL_SETS = Kind("apps", "v1", "statefulsets", "StatefulSet")
LISTED_ONLY = (Kind("apps", "v1", "deployments", "Deployment"), Kind("apps", "v1", "replicasets", "ReplicaSet"))
"""There are none, and a message says so to who tries to create one."""
JOBS = Kind("batch", "v1", "jobs", "Job")
LEASES = KINDS[4]
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", has_status=False)
SECRETS = Kind("", "v1", "secrets", "Secret", has_status=False)
SERVICES = Kind("", "v1", "services", "Service")

BUILT_IN = (
    *KINDS[:10],
    CORE_EVENTS,
    CONFIG_MAPS,
    SECRETS,
    SERVICES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    *LISTED_ONLY,
    JOBS,
    Kind(_RBAC, "v1", "roles", "Role", has_status=False),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding", has_status=False),
    CLUSTER_ROLES,
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, has_status=False),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False),
    Kind(
        _ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
        has_status=False,
    ),
    CRDS,
)
"""What a server offers before any CRD is created."""

SHORT_NAMES = {
    "namespaces": ("ns",),
    "nodes": ("no",),
    "pods": ("po",),
    "configmaps": ("cm",),
    "services": ("svc",),
    "serviceaccounts": ("sa",),
    "events": ("ev",),
    "daemonsets": ("ds",),
    "statefulsets": ("sts",),
    "deployments": ("deploy",),
    "replicasets": ("rs",),
    "customresourcedefinitions": ("crd", "crds"),
}
IN_CATEGORY_ALL = frozenset(
    {"pods", "services", "daemonsets", "deployments", "replicasets", "statefulsets", "jobs"}
)


class Kinds:
    """The kinds that one API serves. CRDs add theirs while it runs."""

    def __init__(self, kinds: Iterable[Kind] = KINDS) -> None:
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        self.generation = 0
        """Grows with every change, so that others know when what they remember is old."""

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._by_path.values()))

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def add(self, kind: Kind) -> None:
        self._by_path[kind.group, kind.version, kind.plural] = kind
        self.generation += 1

    def remove(self, kind: Kind) -> None:
        self._by_path.pop((kind.group, kind.version, kind.plural), None)
        self.generation += 1
