"""A pod's status on its way to the API server: written when it says something new, and remembered."""

from dataclasses import dataclass, field

import msgspec

from imex_dra.api.meta import key_of
from imex_dra.base.errors import NotFound
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.node import STRATEGIC_PATCH
from imex_dra.sandbox.kubelet.situation import Json, Situation
from imex_dra.sandbox.kubelet.status import status
from imex_dra.sandbox.kubelet.views.pod import PODS, Pod
from imex_dra.sandbox.kubelet.views.podstatus import PodStatus


@dataclass
class Reports:
    """Of one pod."""

    client: NodeClient
    told: Json = field(default_factory=dict)
    shown: PodStatus | None = None
    """What was told last, or is just being told."""

    async def write(self, pod: Pod, situation: Situation) -> Pod:
        """Returns the pod as it is known afterwards."""
        fresh = status(pod, situation)
        if fresh == self.told:
            return pod
        self.shown = msgspec.convert(fresh, type=PodStatus)
        change = {"metadata": {"uid": pod.uid}, "status": fresh}
        try:
            written = await self.client.patch(
                PODS, key_of(pod), change, subresource="status", content_type=STRATEGIC_PATCH
            )
        except NotFound:
            return pod
        self.told = fresh
        return written
