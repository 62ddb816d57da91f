"""A namespace in a running cluster, for one test."""

import uuid
from collections.abc import Callable
from typing import Any

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.handle import Cluster
from tests import waiting

TIMEOUT = 120.0


def until(cluster: Cluster, condition: Callable[[], object]) -> None:
    """`tests.waiting.until`, with the logs of the cluster in the error."""
    try:
        waiting.until(condition, within=TIMEOUT)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.logs()}") from None


class Namespace:
    def __init__(self, cluster: Cluster, name: str = "") -> None:
        self.cluster = cluster
        self.name = name or f"test-{uuid.uuid4().hex[:6]}"
        cluster.kubectl("create", "namespace", self.name)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments)

    def get(self, *arguments: str) -> Any:
        return self.cluster.kubectl.get("-n", self.name, *arguments)

    def domain(self, name: str) -> None:
        """Create a ComputeDomain, and wait for its ResourceClaimTemplate."""
        document = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {},
        }
        self.cluster.kubectl.apply(document)
        until(self.cluster, lambda: self.kubectl("get", "resourceclaimtemplate", name, "--ignore-not-found"))

    def pod(self, name: str, node: str, *, template: str = "", command: tuple[str, ...] = ()) -> dict[str, Any]:
        """A manifest. With a template, the container claims a channel."""
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

    def ready_nodes(self, domain: str) -> str:
        """As the column of kubectl get shows them; empty while the controller has written none."""
        status = self.get("computedomain", domain).get("status", {})
        return str(status.get("summary", {}).get("nodes", ""))

    def until_ready(self, *pods: str) -> None:
        names = [f"pod/{pod}" for pod in pods]
        arguments = ("-n", self.name, "wait", "--for=condition=Ready", *names, f"--timeout={TIMEOUT:.0f}s")
        try:
            self.cluster.kubectl(*arguments, within=TIMEOUT + 30)
        except Rejected as error:
            raise AssertionError(f"{error}\n{self.kubectl('get', 'events')}\n{self.cluster.logs()}") from error

    def delete(self, *arguments: str) -> None:
        self.cluster.kubectl("-n", self.name, "delete", *arguments, "--timeout=120s", within=150)

    def delete_all(self) -> None:
        """Wait for the objects to be gone, but not for the namespace."""
        self.delete("pods,computedomains,resourceclaims", "--all")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
