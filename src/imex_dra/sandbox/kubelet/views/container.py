"""One container of a pod: what it runs, with which variables, claims, volumes and probes."""

from typing import Any

from imex_dra.api.meta import View
from imex_dra.sandbox.kubelet.views.configuration import FieldReference, KeyReference, ObjectReference


class EnvSource(View, frozen=True):
    field_ref: FieldReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None


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
