"""Pod, its containers, and its status, as a kubelet reads them.

A kubelet that restarts continues from the status that it wrote before, so the status is part of the view.
"""

from typing import Any

from msgspec import field

from imex_dra.api.meta import AnnotatedMeta, Resource, View
from imex_sandbox.kubelet.views.volume import FieldSelector, KeySelector, ObjectReference, Volume


class EnvVarSource(View, frozen=True):
    field_ref: FieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(View, frozen=True):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvFromSource(View, frozen=True):
    """Exactly one reference is set; every key of the object becomes a variable."""

    prefix: str = ""
    config_map_ref: ObjectReference | None = None
    secret_ref: ObjectReference | None = None


class ContainerClaim(View, frozen=True, gc=False):
    name: str
    request: str = ""


class ContainerResources(View, frozen=True):
    claims: tuple[ContainerClaim, ...] = ()


class VolumeMount(View, frozen=True, gc=False):
    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class ExecAction(View, frozen=True):
    command: tuple[str, ...] = ()


class Probe(View, frozen=True):
    """Only `exec` is supported; the other handlers are read so that an Event can name them."""

    exec: ExecAction | None = None
    http_get: Any = None
    tcp_socket: Any = None
    grpc: Any = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Container(View, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    resources: ContainerResources = ContainerResources()
    volume_mounts: tuple[VolumeMount, ...] = ()
    restart_policy: str = ""
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None

    @property
    def is_sidecar(self) -> bool:
        """Meaningful for init containers only."""
        return self.restart_policy == "Always"


class PodClaim(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str = ""


class PodSpec(View, frozen=True):
    node_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    hostname: str = ""
    service_account_name: str = ""
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()

    @property
    def all_containers(self) -> tuple[Container, ...]:
        return self.init_containers + self.containers


class ContainerStateRunning(View, frozen=True, gc=False):
    pass


class ContainerStateWaiting(View, frozen=True, gc=False):
    reason: str = ""


class ContainerStateTerminated(View, frozen=True, gc=False):
    exit_code: int = 0


class ContainerState(View, frozen=True):
    """At most one is set."""

    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(View, frozen=True):
    name: str
    container_id: str = field(name="containerID", default="")
    restart_count: int = 0
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodClaimStatus(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str | None = None


class PodCondition(View, frozen=True, gc=False):
    type: str
    status: str
    last_transition_time: str = ""


class PodStatus(View, frozen=True):
    phase: str = ""
    start_time: str = ""
    conditions: tuple[PodCondition, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def container(self, name: str) -> ContainerStatus | None:
        statuses = self.init_container_statuses + self.container_statuses
        return next((status for status in statuses if status.name == name), None)


class PodMeta(AnnotatedMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None


class Pod(View, frozen=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def full_name(self) -> str:
        """The format that the kubelet uses in messages."""
        return f"{self.metadata.name}_{self.metadata.namespace}({self.uid})"

    @property
    def hostname(self) -> str:
        return (self.spec.hostname or self.metadata.name)[:63].rstrip("-.")

    @property
    def desired_state(self) -> tuple[object, ...]:
        """Everything that other components decide: a change triggers a sync, the kubelet's own status does not."""
        meta = self.metadata
        deletion = (meta.deletion_timestamp, meta.deletion_grace_period_seconds)
        return (self.spec, meta.labels, meta.annotations, deletion, self.status.resource_claim_statuses)


PODS = Resource(Pod, "", "v1", "pods")
