"""A pod of a cluster: its spec as `lint` reads it, and its status."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from imex_dra.api.meta import Key
from imex_dra.diagnose.snapshot import Plain
from imex_dra.lint.pods import Claim, Container, Object, Pods
from imex_dra.lint.values import Value, from_plain
from imex_dra.lint.workloads import Template

_ENDED = ("Succeeded", "Failed")
_LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_RAY_KIND, _RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"


class Owner(NamedTuple):
    """A workload."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Waiting(NamedTuple):
    """A container that does not start."""

    container: str
    reason: str
    """Such as ImagePullBackOff."""
    message: str


@dataclass(frozen=True, eq=False)
class ClusterPod:
    plain: Plain

    @cached_property
    def value(self) -> Value:
        return from_plain({**self.plain, "kind": "Pod"})

    @cached_property
    def object(self) -> Object:
        return Object("", self.value)

    @cached_property
    def spec(self) -> Value:
        return self.value["spec"]

    @cached_property
    def pods(self) -> Pods:
        return Pods(self.object, Template(self.value, "", 1, self.value, ()))

    @property
    def name(self) -> str:
        return self.value.at("metadata.name").text

    @property
    def namespace(self) -> str:
        return self.value.at("metadata.namespace").text

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def uid(self) -> str:
        return self.value.at("metadata.uid").text

    @property
    def phase(self) -> str:
        return self.value.at("status.phase").text or "Pending"

    @property
    def ended(self) -> bool:
        return self.phase in _ENDED

    @property
    def deleting(self) -> bool:
        return self.value.at("metadata.deletionTimestamp").filled

    @property
    def node(self) -> str:
        """Empty while it is not scheduled."""
        return self.spec["nodeName"].text

    @property
    def labels(self) -> dict[str, str]:
        return self.pods.labels

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self.pods.claims

    @property
    def containers(self) -> tuple[Container, ...]:
        return self.pods.containers

    def claim_name(self, claim: Claim) -> str:
        """Name of its ResourceClaim; empty if Kubernetes has not created it."""
        if claim.shared.text:
            return claim.shared.text
        for status in self.value.at("status.resourceClaimStatuses").elements():
            if status["name"].text == claim.name:
                return status["resourceClaimName"].text
        return ""

    @property
    def unschedulable(self) -> str:
        """What the scheduler says; empty if it says nothing, or the pod is scheduled."""
        for condition in self.value.at("status.conditions").elements():
            if condition["type"].text == "PodScheduled" and condition["status"].text == "False":
                return condition["message"].text or condition["reason"].text or "no reason given"
        return ""

    @property
    def gates(self) -> tuple[str, ...]:
        """Scheduling gates: until whoever set them has removed them, the scheduler ignores the pod."""
        return tuple(gate["name"].text for gate in self.spec["schedulingGates"].elements())

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Containers that do not start, and what the kubelet says about each."""
        statuses = self.value.at("status.containerStatuses").elements()
        return tuple(
            Waiting(status["name"].text, status.at("state.waiting.reason").text, message)
            for status in (*self.value.at("status.initContainerStatuses").elements(), *statuses)
            if not self.ended and (message := status.at("state.waiting.message").text)
        )

    @property
    def controller(self) -> Owner | None:
        """The object that created the pod; see `Cluster.workload` for the one that a user created."""
        for owner in self.value.at("metadata.ownerReferences").elements():
            if owner["controller"].content is True:
                return Owner(owner["kind"].text, self.namespace, owner["name"].text)
        return None

    @property
    def labeled_workload(self) -> Owner | None:
        """That the labels of its operator name; the objects between may not have been read."""
        if name := self.labels.get(_LEADER_WORKER_SET):
            return Owner("LeaderWorkerSet", self.namespace, name)
        kind, name = self.labels.get(_RAY_KIND), self.labels.get(_RAY_NAME)
        return Owner(kind, self.namespace, name) if kind and name else None

    @property
    def group(self) -> str:
        """Of a LeaderWorkerSet, whose groups are jobs of their own."""
        return self.labels.get(_GROUP, "")

    def __str__(self) -> str:
        return f"Pod {self.key}"
