"""The observed state of a pod: what its containers did, and what its probes and devices report.

Plain values, so that the next actions (`podactions`) and the API status (`podstatus`) are pure functions of them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from imex_dra.base.errors import Rejected
from imex_sandbox.kubelet.views.pod import Container, ContainerStatus

Json = dict[str, Any]


class Termination(Struct, frozen=True):
    exit_code: int
    finished_at: datetime
    message: str = ""
    explicit_reason: str = ""

    @property
    def reason(self) -> str:
        return self.explicit_reason or ("Completed" if self.exit_code == 0 else "Error")


class ContainerRun(Struct, frozen=True):
    """One attempt to run a container. A restart is a new run with its own ID."""

    id: str
    attempt: int
    started_at: datetime
    termination: Termination | None = None


class StartError(Rejected):
    """The container was created but its command could not be executed: a run that terminated at once."""


class WaitingReason(Struct, frozen=True):
    reason: str
    message: str = ""


ContainerRuns = Mapping[str, tuple[ContainerRun, ...]]
"""Runs by container name, oldest first. Only the latest run and the one before it are kept."""


def latest_run(runs: ContainerRuns, container: str) -> ContainerRun | None:
    found = runs.get(container, ())
    return found[-1] if found else None


def previous_run(runs: ContainerRuns, container: str) -> ContainerRun | None:
    found = runs.get(container, ())
    return found[-2] if len(found) > 1 else None


def is_running(runs: ContainerRuns, container: str) -> bool:
    run = latest_run(runs, container)
    return run is not None and run.termination is None


def lost_run(known: ContainerStatus, now: datetime) -> ContainerRun:
    """For a container that the API reports as running but the runtime does not know: its machine rebooted."""
    message = "The container could not be located when the pod was terminated"
    termination = Termination(137, now, message, "ContainerStatusUnknown")
    return ContainerRun(known.container_id, known.restart_count, now, termination)


class PodState(Struct, frozen=True):
    now: datetime
    runs: ContainerRuns
    waiting: Mapping[str, WaitingReason] = {}
    """Why a container could not be created."""
    host_ip: str = ""
    pod_ip: str = ""
    devices: Mapping[str, list[Json]] = {}
    """`allocatedResourcesStatus` of each container that lists a claim."""
    unstarted: frozenset[str] = frozenset()
    """Containers whose startup probe has not succeeded yet."""
    unready: frozenset[str] = frozenset()
    """Containers whose readiness probe does not succeed."""
    has_sandbox: bool = False
    terminated: bool = False
    """All containers are stopped for good and all claims are unprepared: the phase may become terminal."""

    def is_started(self, container: str) -> bool:
        return is_running(self.runs, container) and container not in self.unstarted

    def is_ready(self, container: str) -> bool:
        return self.is_started(container) and container not in self.unready

    def is_initialized(self, container: Container) -> bool:
        """Whether this init container lets the containers after it start."""
        run = latest_run(self.runs, container.name)
        if run is None:
            return False
        if container.is_sidecar:
            return container.name not in self.unstarted
        return run.termination is not None and run.termination.exit_code == 0
