"""Rules: which pods of IMEX daemons have an old version, and which of them can be restarted now?

A restart of nvidia-imex ends the imports of its node's memory, so its DaemonSet has the update strategy
OnDelete: an administrator deletes the pods. A daemon is unused if no claim is allocated on its node.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from imex_dra.api.names import NAMESPACE
from imex_dra.api.views import DAEMON_SETS
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.pods import ClusterPod, Owner
from imex_dra.diagnose.rule import Link, Problem, about_node, rule
from imex_dra.lint.findings import Severity


class OldDaemon(NamedTuple):
    pod: ClusterPod
    images: tuple[str, ...]
    """What it runs."""
    wanted: tuple[str, ...]
    claims: int
    """Allocated on its node: a restart would disturb their pods."""


def old_daemons(cluster: Cluster) -> list[OldDaemon]:
    """A pod runs an old version if its images differ from those of its DaemonSet."""
    wanted = {
        Owner("DaemonSet", NAMESPACE, str(one["metadata"].get("name"))): _images(_containers(one))
        for one in cluster.snapshot.of(DAEMON_SETS.plural)
        if one["metadata"].get("namespace") == NAMESPACE
        and (one.get("spec", {}).get("updateStrategy") or {}).get("type") == "OnDelete"
    }
    found = []
    for pod in cluster.pods:
        if pod.controller in wanted and pod.node and not pod.ended:
            images = tuple(one["image"].text for one in pod.spec["containers"].elements())
            if images != wanted[pod.controller]:
                claims = len(cluster.claims_on.get(pod.node, ()))
                found.append(OldDaemon(pod, images, wanted[pod.controller], claims))
    return found


def _containers(daemon_set: dict[str, Any]) -> list[dict[str, Any]]:
    spec: dict[str, Any] = daemon_set.get("spec", {}).get("template", {}).get("spec", {})
    return spec.get("containers") or []


def _images(containers: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(str(container.get("image", "")) for container in containers)


@rule(
    "IMEX316",
    Severity.NOTE,
    Link.DAEMON,
    "An IMEX daemon with an old version can be restarted now",
    why="""The DaemonSet of the IMEX daemon has a newer image than the pod on this node. No claim is allocated
    there, so that a restart disturbs no workload. Pods of the DaemonSet are replaced only when somebody deletes
    them.""",
    finds="the IMEX daemon of r0-n01 runs imex:1, not imex:2, and no workload uses it now",
)
def old_and_unused(cluster: Cluster) -> Iterator[Problem]:
    for daemon in old_daemons(cluster):
        if not daemon.claims:
            node, old, new = daemon.pod.node, ", ".join(daemon.images), ", ".join(daemon.wanted)
            message = f"the IMEX daemon of {node} runs {old}, not {new}, and no workload uses it now"
            yield about_node(node, message, f"kubectl -n {NAMESPACE} delete pod {daemon.pod.name}")


RULES = (old_and_unused,)
