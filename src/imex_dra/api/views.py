"""Narrow, read-only views of the Kubernetes objects that we look at but don't own."""

from typing import Any

from msgspec import field

from imex_dra.api.meta import AnnotatedMeta, ObjectMeta, Resource, View
from imex_dra.api.names import DRIVER


class PodResourceClaim(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(View, frozen=True):
    node_name: str = ""
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodStatus(View, frozen=True, gc=False):
    phase: str = ""
    pod_ip: str = field(name="podIP", default="")


class Pod(View, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeCondition(View, frozen=True, gc=False):
    type: str
    status: str


class NodeAddress(View, frozen=True, gc=False):
    type: str
    address: str


class NodeInfo(View, frozen=True, gc=False):
    boot_id: str = field(name="bootID", default="")
    kubelet_version: str = ""


class NodeStatus(View, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeInfo = NodeInfo()


class NodeSpec(View, frozen=True, gc=False):
    unschedulable: bool = False


class Node(View, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(View, frozen=True):
    metadata: ObjectMeta


class OpaqueConfig(View, frozen=True):
    driver: str = ""
    parameters: Any = None


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


class ExactRequest(View, frozen=True, gc=False):
    device_class_name: str


class DeviceRequest(View, frozen=True):
    name: str
    exactly: ExactRequest | None = None


class ClaimDevices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None
    """The API server writes null where there are none."""
    config: tuple[DeviceConfig, ...] = ()


class ClaimSpec(View, frozen=True):
    devices: ClaimDevices = ClaimDevices()


class ResourceClaim(View, frozen=True):
    metadata: AnnotatedMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> tuple[AllocationResult, ...]:
        """What the scheduler allocated from our driver; empty while nothing is allocated."""
        allocation = self.status.allocation
        return tuple(r for r in allocation.devices.results if r.driver == DRIVER) if allocation else ()

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(consumer.name for consumer in self.status.reserved_for if consumer.resource == "pods")


class ResourceClaimTemplateSpec(View, frozen=True):
    metadata: AnnotatedMeta = AnnotatedMeta()
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(View, frozen=True):
    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class AttributeValue(View, frozen=True, gc=False):
    """Exactly one of them is set."""

    integer: int | None = field(name="int", default=None)
    boolean: bool | None = field(name="bool", default=None)
    string: str | None = None
    version: str | None = None


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


class CELSelector(View, frozen=True, gc=False):
    expression: str


class DeviceSelector(View, frozen=True):
    cel: CELSelector | None = None


class DeviceClassSpec(View, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClass(View, frozen=True):
    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class LeaseSpec(View, frozen=True, gc=False):
    """Times are strings: the API server demands exactly six fraction digits, which no encoder promises."""

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


PODS = Resource(Pod, "", "v1", "pods")
NODES = Resource(Node, "", "v1", "nodes", namespaced=False)
NAMESPACES = Resource(Namespace, "", "v1", "namespaces", namespaced=False)
RESOURCE_CLAIMS = Resource(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES = Resource(ResourceClaimTemplate, "resource.k8s.io", "v1", "resourceclaimtemplates")
RESOURCE_SLICES = Resource(ResourceSlice, "resource.k8s.io", "v1", "resourceslices", namespaced=False)
DEVICE_CLASSES = Resource(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", namespaced=False)
LEASES = Resource(Lease, "coordination.k8s.io", "v1", "leases")
EVENTS = Resource(Event, "events.k8s.io", "v1", "events")
