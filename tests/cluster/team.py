"""What tests on a whole cluster have in common."""

import uuid
from collections.abc import Callable
from typing import Any

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.handle import Cluster
from tests.sandbox.waiting import eventually

GENEROUS = 120.0


def until(cluster: Cluster, condition: Callable[[], bool], within: float = GENEROUS) -> None:
    if not eventually(condition, within):
        raise AssertionError(f"not within {within:.0f} s.\n{cluster.logs()}")


class Team:
    """A namespace of its own, and what its people do."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"team-{uuid.uuid4().hex[:6]}"
        cluster.kubectl("create", "namespace", self.name)

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("-n", self.name, *words)

    def get(self, *words: str) -> Any:
        return self.cluster.kubectl.get("-n", self.name, *words)

    def domain(self, name: str, **spec: Any) -> None:
        """Creates a ComputeDomain, and waits for its template."""
        document = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name, "namespace": self.name},
            "spec": spec,
        }
        self.cluster.kubectl.apply(document)
        until(self.cluster, lambda: bool(self.kubectl("get", "resourceclaimtemplate", name, "--ignore-not-found")))

    def pod(self, name: str, node: str, *, template: str = "", command: tuple[str, ...] = ()) -> dict[str, Any]:
        container: dict[str, Any] = {"name": "main", "image": "nothing-is-pulled"}
        spec: dict[str, Any] = {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
        }
        if command:
            container["command"] = list(command)
        if template:
            spec["resourceClaims"] = [{"name": "channel", "resourceClaimTemplateName": template}]
            container["resources"] = {"claims": [{"name": "channel"}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": spec,
        }

    def until_ready(self, *pods: str, within: float = GENEROUS) -> None:
        names = [f"pod/{pod}" for pod in pods]
        words = ("-n", self.name, "wait", "--for=condition=Ready", *names, f"--timeout={within:.0f}s")
        try:
            self.cluster.kubectl(*words, within=within + 30)
        except Rejected as error:
            raise AssertionError(f"{error}\n{self.kubectl('get', 'events')}\n{self.cluster.logs()}") from error

    def delete(self, *words: str) -> None:
        self.cluster.kubectl("-n", self.name, "delete", *words, "--timeout=120s", within=150)

    def disband(self) -> None:
        """Everything of it is gone afterwards, but the empty namespace."""
        self.delete("pods,computedomains,resourceclaims", "--all")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
