"""A pod as a kubelet reads it."""

from imex_dra.api.meta import AnnotatedMeta, Resource, View
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.podstatus import PodStatus
from imex_dra.sandbox.kubelet.views.volume import Volume


class PodMeta(AnnotatedMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None


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
    def every_container(self) -> tuple[Container, ...]:
        return self.init_containers + self.containers


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


PODS = Resource(Pod, "", "v1", "pods")
