"""What a pod's status says so far: a kubelet that starts anew goes on with it."""

from msgspec import field

from imex_dra.api.meta import View


class PodClaimStatus(View, frozen=True, gc=False):
    name: str
    resource_claim_name: str | None = None


class PodCondition(View, frozen=True, gc=False):
    type: str
    status: str
    last_transition_time: str = ""


class Running(View, frozen=True, gc=False):
    """Since when is not asked here."""


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
