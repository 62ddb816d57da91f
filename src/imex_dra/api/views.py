"""Views of Kubernetes objects: only the fields that we use. Never written back as a whole (`kube.patch`)."""

from msgspec import Raw, field
from msgspec.structs import force_setattr

from imex_dra.api.meta import AnnotatedMeta, ObjectMeta, Resource, View
from imex_dra.api.names import DRIVER
from imex_dra.api.opaque import NO_PARAMETERS, kept_parameters, named_domain


class PodSpec(View, frozen=True, gc=False):
    node_name: str = ""


class PodStatus(View, frozen=True, gc=False):
    phase: str = ""


class Pod(View, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeCondition(View, frozen=True, gc=False):
    type: str
    status: str


class NodeAddress(View, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(View, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(View, frozen=True):
    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()


class Namespace(View, frozen=True):
    metadata: ObjectMeta


class Secret(View, frozen=True):
    metadata: AnnotatedMeta
    type: str = ""
    data: dict[str, str] = {}
    """Values in base64."""


class WebhookClientConfig(View, frozen=True):
    ca_bundle: str = field(name="caBundle", default="")


class Webhook(View, frozen=True):
    client_config: WebhookClientConfig = WebhookClientConfig()


class WebhookConfiguration(View, frozen=True):
    """A Validating- or MutatingWebhookConfiguration: only whom the API server trusts."""

    metadata: ObjectMeta
    webhooks: tuple[Webhook, ...] = ()


class OpaqueConfig(View, frozen=True):
    """Parameters of other drivers are never decoded, and not kept."""

    driver: str = ""
    parameters: Raw = NO_PARAMETERS

    def __post_init__(self) -> None:
        force_setattr(self, "parameters", kept_parameters(self.driver, self.parameters))


class DeviceConfig(View, frozen=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None
    source: str = ""


class AllocationResult(View, frozen=True, gc=False):
    request: str
    driver: str
    pool: str
    device: str


class DeviceAllocation(View, frozen=True):
    results: tuple[AllocationResult, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


class Allocation(View, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()


class ClaimConsumer(View, frozen=True, gc=False):
    resource: str
    name: str
    uid: str


class ClaimStatus(View, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class DeviceSelector(View, frozen=True, gc=False):
    """Only whether there is one."""


class ExactRequest(View, frozen=True, gc=False):
    """The defaults are those of the API server."""

    device_class_name: str
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceRequest(View, frozen=True):
    name: str
    exactly: ExactRequest | None = None


class ClaimDevices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None
    """The API server returns null if there are none."""
    config: tuple[DeviceConfig, ...] = ()


class ClaimSpec(View, frozen=True):
    devices: ClaimDevices = ClaimDevices()


class ResourceClaim(View, frozen=True):
    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> tuple[AllocationResult, ...]:
        """The devices of our driver that the scheduler allocated."""
        allocation = self.status.allocation
        return tuple(r for r in allocation.devices.results if r.driver == DRIVER) if allocation else ()

    @property
    def nodes(self) -> set[str]:
        """The nodes of these devices: a node's pool has the name of the node."""
        return {result.pool for result in self.results}

    @property
    def domain_uids(self) -> set[str]:
        """ComputeDomains that the configuration of an allocated claim names. Its labels do not matter."""
        allocation = self.status.allocation
        return _domain_uids(allocation.devices.config) if allocation is not None and self.results else set()

    @property
    def waits_for_domain_uids(self) -> set[str]:
        """ComputeDomains that a pod's claim names while it waits for the scheduler. A claim that no pod owns may
        be unused.
        """
        is_of_pod = any(owner.kind == "Pod" for owner in self.metadata.owner_references)
        waits = is_of_pod and self.status.allocation is None and not self.metadata.deletion_timestamp
        return _domain_uids(self.spec.devices.config) if waits else set()

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(consumer.name for consumer in self.status.reserved_for if consumer.resource == "pods")


def _domain_uids(configs: tuple[DeviceConfig, ...]) -> set[str]:
    opaque = (config.opaque for config in configs)
    return {named_domain(o.parameters) for o in opaque if o is not None and o.driver == DRIVER} - {""}


class ResourceClaimTemplateSpec(View, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(View, frozen=True):
    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class AttributeValue(View, frozen=True, gc=False):
    """Exactly one field is set."""

    integer: int | None = field(name="int", default=None)
    string: str | None = None


class Device(View, frozen=True):
    name: str
    attributes: dict[str, AttributeValue] = {}


class Pool(View, frozen=True, gc=False):
    name: str
    generation: int
    resource_slice_count: int


class ResourceSliceSpec(View, frozen=True):
    driver: str
    pool: Pool
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(View, frozen=True):
    metadata: ObjectMeta
    spec: ResourceSliceSpec


class Container(View, frozen=True):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class ContainerList(View, frozen=True):
    containers: tuple[Container, ...] = ()


class PodTemplate(View, frozen=True):
    spec: ContainerList = ContainerList()


class DaemonSetSpec(View, frozen=True):
    template: PodTemplate = PodTemplate()


class DaemonSet(View, frozen=True):
    metadata: ObjectMeta
    spec: DaemonSetSpec = DaemonSetSpec()


class LeaseSpec(View, frozen=True, gc=False):
    """Times are strings, because the API server requires exactly six fractional digits (`rfc3339_micro`)."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class Lease(View, frozen=True):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(View, frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(View, frozen=True, gc=False):
    count: int
    last_observed_time: str


class Event(View, frozen=True):
    metadata: ObjectMeta
    event_time: str = ""
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    note: str = ""
    type: str = ""
    series: EventSeries | None = None


class UserInfo(View, frozen=True, gc=False):
    username: str = ""
    uid: str = ""


class SelfSubjectReviewStatus(View, frozen=True):
    user_info: UserInfo = UserInfo()


class SelfSubjectReview(View, frozen=True):
    """Who the API server thinks that the sender is."""

    metadata: ObjectMeta = ObjectMeta()
    status: SelfSubjectReviewStatus = SelfSubjectReviewStatus()


PODS = Resource(Pod, "", "v1", "pods")
NODES = Resource(Node, "", "v1", "nodes", namespaced=False)
SECRETS = Resource(Secret, "", "v1", "secrets")
WEBHOOK_CONFIGURATIONS = tuple(
    Resource(WebhookConfiguration, "admissionregistration.k8s.io", "v1", plural, namespaced=False)
    for plural in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
)
NAMESPACES = Resource(Namespace, "", "v1", "namespaces", namespaced=False)
RESOURCE_CLAIMS = Resource(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES = Resource(ResourceClaimTemplate, "resource.k8s.io", "v1", "resourceclaimtemplates")
RESOURCE_SLICES = Resource(ResourceSlice, "resource.k8s.io", "v1", "resourceslices", namespaced=False)
DAEMON_SETS = Resource(DaemonSet, "apps", "v1", "daemonsets")
LEASES = Resource(Lease, "coordination.k8s.io", "v1", "leases")
EVENTS = Resource(Event, "events.k8s.io", "v1", "events")
SELF_SUBJECT_REVIEWS = Resource(
    SelfSubjectReview, "authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False
)
