"""Pods and claims as a kubelet reads them: wider than the driver's views, still only what is acted on."""

from typing import Any

from msgspec import field

from imex_dra.api.meta import AnnotatedMeta, ObjectMeta, Resource, View


class PodMeta(AnnotatedMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None


class KeyReference(View, frozen=True, gc=False):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldReference(View, frozen=True, gc=False):
    field_path: str = ""


class EnvSource(View, frozen=True):
    field_ref: FieldReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None


class ObjectReference(View, frozen=True, gc=False):
    name: str = ""
    optional: bool = False


class EnvFrom(View, frozen=True):
    """All keys of one of them."""

    prefix: str = ""
    config_map_ref: ObjectReference | None = None
    secret_ref: ObjectReference | None = None


class EnvVar(View, frozen=True):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class ContainerClaim(View, frozen=True, gc=False):
    name: str
    request: str = ""


class ContainerResources(View, frozen=True):
    claims: tuple[ContainerClaim, ...] = ()
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}


class VolumeMount(View, frozen=True, gc=False):
    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class ExecAction(View, frozen=True):
    command: tuple[str, ...] = ()


class Probe(View, frozen=True):
    """Of the ways to ask only the first is known here; which other was chosen is kept to be told."""

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
    env_from: tuple[EnvFrom, ...] = ()
    resources: ContainerResources = ContainerResources()
    volume_mounts: tuple[VolumeMount, ...] = ()
    restart_policy: str = ""
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None

    @property
    def is_sidecar(self) -> bool:
        """Of an init container: it goes on beside those that come after it."""
        return self.restart_policy == "Always"


class FileItem(View, frozen=True, gc=False):
    """One file of a volume; the source is a key or a field."""

    path: str
    key: str = ""
    mode: int | None = None
    field_ref: FieldReference | None = None


class ConfigMapVolume(View, frozen=True):
    name: str = ""
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretVolume(View, frozen=True):
    secret_name: str = ""
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardVolume(View, frozen=True):
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644


class TokenSource(View, frozen=True, gc=False):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class SecretSource(View, frozen=True):
    name: str = ""
    items: tuple[FileItem, ...] = ()
    optional: bool = False


class ProjectedSource(View, frozen=True):
    """One of them."""

    service_account_token: TokenSource | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretSource | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)


class ProjectedVolume(View, frozen=True):
    sources: tuple[ProjectedSource, ...] = ()
    default_mode: int = 0o644


class EmptyDirVolume(View, frozen=True, gc=False):
    medium: str = ""


class Volume(View, frozen=True):
    """Of the sources at most one is set; a kind that is not here leaves all of them empty."""

    name: str
    empty_dir: EmptyDirVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)
    projected: ProjectedVolume | None = None

    @property
    def is_known(self) -> bool:
        return any((self.empty_dir, self.config_map, self.secret, self.downward_api, self.projected))

    @property
    def default_mode(self) -> int:
        sources = (self.config_map, self.secret, self.downward_api, self.projected)
        return next((source.default_mode for source in sources if source), 0o644)

    @property
    def parts(self) -> tuple[ProjectedSource, ...]:
        """Every kind is read as projected: a plain one is a projection of one source."""
        if self.projected is not None:
            return self.projected.sources
        own = self.secret
        secret = None if own is None else SecretSource(own.secret_name, own.items, own.optional)
        plain = ProjectedSource(config_map=self.config_map, secret=secret, downward_api=self.downward_api)
        return (plain,)


class PodClaim(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


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
    def every_container(self) -> tuple[Container, ...]:
        return self.init_containers + self.containers


class PodClaimStatus(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str | None = None


class PodCondition(View, frozen=True, gc=False):
    type: str
    status: str
    last_transition_time: str = ""


class Running(View, frozen=True, gc=False):
    started_at: str | None = None


class Waiting(View, frozen=True, gc=False):
    reason: str = ""


class Terminated(View, frozen=True, gc=False):
    exit_code: int = 0


class ContainerState(View, frozen=True):
    """One of them, or none."""

    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(View, frozen=True):
    name: str
    container_id: str = field(name="containerID", default="")
    restart_count: int = 0
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(View, frozen=True):
    phase: str = ""
    start_time: str = ""
    conditions: tuple[PodCondition, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def of(self, container: str) -> ContainerStatus | None:
        every = self.init_container_statuses + self.container_statuses
        return next((status for status in every if status.name == container), None)


class Pod(View, frozen=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def full_name(self) -> str:
        """As the kubelet writes it in messages."""
        return f"{self.metadata.name}_{self.metadata.namespace}({self.uid})"

    @property
    def hostname(self) -> str:
        return (self.spec.hostname or self.metadata.name)[:63].rstrip("-.")

    @property
    def wish(self) -> tuple[object, ...]:
        """What somebody else decides about it; a change makes a kubelet look at once, a new status does not."""
        meta = self.metadata
        deletion = (meta.deletion_timestamp, meta.deletion_grace_period_seconds)
        return (self.spec, meta.labels, meta.annotations, deletion, self.status.resource_claim_statuses)


class ConfigMap(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class Secret(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, bytes] = {}


class AllocationResult(View, frozen=True, gc=False):
    request: str
    driver: str


class DeviceAllocation(View, frozen=True):
    results: tuple[AllocationResult, ...] = ()


class Allocation(View, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()


class ClaimConsumer(View, frozen=True, gc=False):
    resource: str
    name: str
    uid: str


class ClaimStatus(View, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(View, frozen=True):
    metadata: ObjectMeta
    status: ClaimStatus = ClaimStatus()

    @property
    def drivers(self) -> tuple[str, ...]:
        """Each once, in the order of the allocation."""
        results = self.status.allocation.devices.results if self.status.allocation else ()
        return tuple(dict.fromkeys(result.driver for result in results))


PODS = Resource(Pod, "", "v1", "pods")
CONFIG_MAPS = Resource(ConfigMap, "", "v1", "configmaps")
SECRETS = Resource(Secret, "", "v1", "secrets")
CLAIMS = Resource(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims")
