"""The Kubernetes objects of the demo: two ComputeDomains, pods that claim a channel, and an MPIJob over a rack."""

import sys
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.views import Pod

NAMESPACE = "demo"
TRAIN, OTHER = "train", "other"
"""Two ComputeDomains. Each ResourceClaimTemplate has the name of its ComputeDomain."""

_IMAGE = "registry.example/imex-demo:1"
"""Never pulled: a simulated node runs the command itself."""

_PRINT_CHANNEL = (
    'ls /dev/nvidia-caps-imex-channels; echo "$COMPUTE_DOMAIN_NAME $COMPUTE_DOMAIN_CHANNEL";'
    " trap 'exit 0' TERM; while :; do sleep 1; done"
)
_ALLREDUCE_SIZES = ("-b", "64K", "-e", "64K", "-n", "1", "-w", "0")
"""One size, once out of place and once in place: the 72 processes share one machine."""

Json = dict[str, Any]


def namespace() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def compute_domain(name: str) -> Json:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"channel": {"resourceClaimTemplate": {"name": name}}},
    }


def pod(name: str, template: str, *command: str, node: str = "") -> Json:
    """A pod that claims a channel. A node selector, not nodeName: only the scheduler allocates its claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": template}],
            "containers": [
                {
                    "name": "main",
                    "image": _IMAGE,
                    "command": list(command),
                    "resources": {"claims": [{"name": "imex"}]},
                }
            ],
        },
    }


def minimal_pod() -> Json:
    """Prints the channel that its container has."""
    return pod("minimal", TRAIN, "sh", "-c", _PRINT_CHANNEL)


def memory_pod(name: str, template: str, *arguments: str, node: str = "") -> Json:
    command = (sys.executable, "-P", "-m", "imex_sandbox.demo.sharedmemory")
    return pod(name, template, *command, *arguments, node=node)


class Job(Struct, frozen=True):
    """An MPIJob that runs a verified all-reduce: a worker on every node of a rack, a rank on every GPU."""

    workers: int
    slots: int
    name: str = "allreduce"
    within: float = 300.0
    """Seconds until it must have succeeded."""

    @property
    def ranks(self) -> int:
        return self.workers * self.slots

    @property
    def launcher(self) -> str:
        return f"job/{self.name}-launcher"

    def is_worker(self, pod: str) -> bool:
        return pod.startswith(f"{self.name}-worker-")

    def progress(self, pods: Sequence[Pod]) -> str:
        running = sum(self.is_worker(pod.metadata.name) and pod.status.phase == "Running" for pod in pods)
        return f"{running} of {self.workers} workers are running"

    def manifest(self) -> Json:
        return {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "slotsPerWorker": self.slots,
                "runPolicy": {"cleanPodPolicy": "Running"},
                "mpiReplicaSpecs": {"Launcher": self._launcher(), "Worker": self._worker()},
            },
        }

    def _launcher(self) -> Json:
        command = ["mpirun", "-np", str(self.ranks), "imex", "allreduce", *_ALLREDUCE_SIZES]
        return {"replicas": 1, "template": {"spec": {"containers": [_mpi_container(command=command)]}}}

    def _worker(self) -> Json:
        """All workers are in one rack. Each takes all GPUs of its node, so there is one on each node."""
        labels = {"demo": self.name}
        same_rack = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": labels}}
        resources = {"limits": {"nvidia.com/gpu": self.slots}, "claims": [{"name": "imex"}]}
        spec = {
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [same_rack]}},
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": TRAIN}],
            "containers": [_mpi_container(resources=resources)],
        }
        return {"replicas": self.workers, "template": {"metadata": {"labels": labels}, "spec": spec}}


def _mpi_container(**fields: Any) -> Json:
    return {"name": "mpi", "image": "registry.example/mpi:1", **fields}
