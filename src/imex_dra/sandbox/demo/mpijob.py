"""The MPIJob: a worker on every node of a rack, a rank on every GPU, one verified all-reduce over all of them."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.views import Pod
from imex_dra.sandbox.demo.report import Check
from imex_dra.sandbox.demo.workloads import NAMESPACE, TRAIN

_RANK = re.compile(r"^#\s+Rank\s+\d+ Group", re.MULTILINE)
_VERDICT = re.compile(r"^# Out of bounds values : (.*)$", re.MULTILINE)
_SIZES = ("-b", "1K", "-e", "64K", "-f", "64", "-n", "1", "-w", "0")
"""A small and a larger one, once each: 72 processes share this machine."""


class Job(Struct, frozen=True):
    workers: int
    slots: int
    name: str = "allreduce"
    within: float = 300.0
    """Seconds that it may take."""

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
        return f"{running} of {self.workers} workers run"

    def manifest(self) -> dict[str, Any]:
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

    def _launcher(self) -> dict[str, Any]:
        command = ["mpirun", "-np", str(self.ranks), "imex", "allreduce", *_SIZES]
        return {"replicas": 1, "template": {"spec": {"containers": [_container(command=command)]}}}

    def _worker(self) -> dict[str, Any]:
        """All in one rack; each has the GPUs of its node, so there is one on a node."""
        labels = {"demo": self.name}
        together = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": labels}}
        resources = {"limits": {"nvidia.com/gpu": self.slots}, "claims": [{"name": "imex"}]}
        spec = {
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [together]}},
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": TRAIN}],
            "containers": [_container(resources=resources)],
        }
        return {"replicas": self.workers, "template": {"metadata": {"labels": labels}, "spec": spec}}


def _container(**fields: Any) -> dict[str, Any]:
    return {"name": "mpi", "image": "registry.example/mpi:1", **fields}


def judged(output: str, ranks: int) -> list[Check]:
    """What the all-reduce says of itself, in nccl-tests' words."""
    took_part = len(_RANK.findall(output))
    verdict = _VERDICT.findall(output)
    return [
        Check("ranks that took part", took_part == ranks, f"{took_part} of {ranks}"),
        Check("every element of every sum is right", verdict == ["0 OK"], verdict[0] if verdict else "no verdict"),
    ]
