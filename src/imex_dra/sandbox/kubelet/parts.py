"""The parts of a kubelet that all pods of its node share, and its times."""

from dataclasses import dataclass

from imex_dra.base.clock import Clock
from imex_dra.sandbox.kubelet.claims import Claims
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.containers import Runtime
from imex_dra.sandbox.kubelet.events import Events
from imex_dra.sandbox.kubelet.health import Health
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.orders import OrderDesk
from imex_dra.sandbox.kubelet.situation import Json
from imex_dra.sandbox.kubelet.views.pod import Pod

RESYNC = 60.0
"""After a failed prepare too: the real kubelet does not take that for an error of its own."""

RETRY = 10.0


@dataclass(frozen=True)
class Parts:
    facts: NodeFacts
    client: NodeClient
    claims: Claims
    runtime: Runtime
    desk: OrderDesk
    health: Health
    events: Events
    clock: Clock
    resync: float = RESYNC
    retry: float = RETRY

    def devices(self, pod: Pod) -> dict[str, list[Json]]:
        """By container, how what it claims fares."""
        claiming = [container for container in pod.spec.containers if container.resources.claims]
        return {c.name: [self.health.entry(*each) for each in self.claims.allocated(pod, c)] for c in claiming}
