"""How long containers have to end, once they are asked to."""

from imex_dra.api.meta import is_deleting
from imex_dra.sandbox.kubelet.views.pod import Pod

SHORTEST_GRACE = 2.0


def grace(pod: Pod, given: int | None = None) -> float:
    """Seconds; `given` goes before the pod's own, and a deletion's before both."""
    if is_deleting(pod) and pod.metadata.deletion_grace_period_seconds is not None:
        given = pod.metadata.deletion_grace_period_seconds
    return max(SHORTEST_GRACE, pod.spec.termination_grace_period_seconds if given is None else given)
