"""What a pod's status is made of, besides the pod itself; and what can be said of its containers from that."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from imex_dra.sandbox.kubelet.runs import Runs, Waiting, is_running, latest
from imex_dra.sandbox.kubelet.views.container import Container

Json = dict[str, Any]


class Situation(Struct, frozen=True):
    now: datetime
    runs: Runs
    waiting: Mapping[str, Waiting] = {}
    """What keeps a container from being made."""
    host_ip: str = ""
    pod_ip: str = ""
    devices: Mapping[str, list[Json]] = {}
    """How the devices of each container that claims some fare."""
    unstarted: frozenset[str] = frozenset()
    """Containers whose startup probe has not succeeded yet."""
    unready: frozenset[str] = frozenset()
    """Containers whose readiness probe does not succeed."""
    sandbox: bool = False
    ended: bool = False
    """Its containers are stopped for good and its claims given back: only now it may be told to be over."""

    def is_started(self, container: str) -> bool:
        return is_running(self.runs, container) and container not in self.unstarted

    def is_ready(self, container: str) -> bool:
        return self.is_started(container) and container not in self.unready

    def is_through(self, container: Container) -> bool:
        """Of an init container: what comes after it may start."""
        run = latest(self.runs, container.name)
        if run is None:
            return False
        if container.is_sidecar:
            return container.name not in self.unstarted
        return run.end is not None and run.end.code == 0
