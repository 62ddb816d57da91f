"""What the runtime knows of a container: its runs, the latest last. All decisions are made on these."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus


class End(Struct, frozen=True):
    code: int
    at: datetime
    message: str = ""
    reason: str = ""

    @property
    def why(self) -> str:
        return self.reason or ("Completed" if self.code == 0 else "Error")


class Run(Struct, frozen=True):
    id: str
    attempt: int
    started: datetime
    end: End | None = None


class StartFailed(Rejected):
    """The container was made but its command did not run: for a pod, a run that ended at once."""


class Waiting(Struct, frozen=True):
    reason: str
    message: str = ""


Runs = Mapping[str, tuple[Run, ...]]
"""By container name; a container that never ran has none. Two runs are kept: the latest and the one before."""


def latest(runs: Runs, name: str) -> Run | None:
    found = runs.get(name, ())
    return found[-1] if found else None


def previous(runs: Runs, name: str) -> Run | None:
    found = runs.get(name, ())
    return found[-2] if len(found) > 1 else None


def is_running(runs: Runs, name: str) -> bool:
    run = latest(runs, name)
    return run is not None and run.end is None


def lost(known: ContainerStatus, now: datetime) -> Run:
    """The run of a container that was told to be running, of which no runtime knows: it went with the machine."""
    words = "The container could not be located when the pod was terminated"
    return Run(known.container_id, known.restart_count, now, End(137, now, words, "ContainerStatusUnknown"))
