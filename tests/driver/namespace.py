"""A namespace of the driver cluster: ComputeDomains, claims and pods, created and observed as its users do."""

import uuid
from collections.abc import Sequence
from typing import Any

from imex_dra.api.names import CHANNEL_CLASS, DRIVER
from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes import images
from tests.driver.cluster import DriverCluster


class Namespace:
    def __init__(self, cluster: DriverCluster) -> None:
        self.cluster = cluster
        self.name = f"team-{uuid.uuid4().hex[:6]}"
        cluster.kubectl("create", "namespace", self.name)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments)

    def get(self, *arguments: str) -> Any:
        return self.cluster.kubectl.get("-n", self.name, *arguments)

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found"))

    def delete(self, *arguments: str) -> None:
        """Returns when the objects are gone."""
        self.cluster.kubectl("-n", self.name, "delete", *arguments, "--timeout=150s", within=180)

    # ComputeDomains and claims

    def create_domain(self, name: str, **spec: Any) -> str:
        """Waits for the ResourceClaimTemplate; returns the UID."""
        self.cluster.kubectl.apply(
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "ComputeDomain",
                "metadata": {"name": name, "namespace": self.name},
                "spec": spec,
            }
        )
        self.cluster.until(lambda: self.exists("resourceclaimtemplate", name))
        uid: str = self.get("computedomain", name)["metadata"]["uid"]
        return uid

    def release_domain(self, name: str) -> None:
        """Deletes a ComputeDomain whose pods still exist. Does not wait for the deletion."""
        self.kubectl("delete", "computedomain", name, "--wait=false")
        self.kubectl("annotate", "computedomain", name, "imex-dra.io/release=now")

    def status(self, domain: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("computedomain", domain).get("status", {})
        return found

    def condition(self, domain: str, kind: str) -> dict[str, Any]:
        return next((c for c in self.status(domain).get("conditions", []) if c["type"] == kind), {})

    def ready_nodes(self, domain: str) -> str:
        return str(self.status(domain).get("summary", {}).get("nodes"))

    def create_claim(self, name: str, parameters: dict[str, Any]) -> None:
        """Without a template, and with any configuration."""
        opaque = {"driver": DRIVER, "parameters": parameters}
        request = {"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}
        self.cluster.kubectl.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}},
            }
        )

    def claims(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("resourceclaims")["items"]
        return found

    # Pods

    def create_pod(self, name: str, node: str, **options: Any) -> None:
        self.cluster.kubectl.apply(self.pod_manifest(name, node, **options))

    def pod_manifest(
        self,
        name: str,
        node: str,
        *,
        template: str = "",
        claim: str = "",
        extra: Sequence[str] = (),
        image: str = images.BUSYBOX,
    ) -> dict[str, Any]:
        """Container `main` uses the claim; the `extra` containers do not."""
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        idle = {"image": image, "command": ["sleep", "10000"]}
        main = {"name": "main", **idle, "resources": {"claims": [{"name": "channel"}]}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "resourceClaims": [{"name": "channel", **source}],
                "containers": [main, *({"name": other, **idle} for other in extra)],
            },
        }

    def until_running(self, *pods: str, within: float = 150) -> None:
        names = [f"pod/{pod}" for pod in pods]
        arguments = ("-n", self.name, "wait", "--for=condition=Ready", *names, f"--timeout={within:.0f}s")
        try:
            self.cluster.kubectl(*arguments, within=within + 10)
        except Rejected as error:
            events = self.kubectl("get", "events")
            raise AssertionError(f"{error}\n{events}\n{self.cluster.logs()}") from error

    def until_running_after_failure(self, pod: str) -> None:
        """The kubelet retries a failed prepare after a minute or more; a change of the pod makes it retry now."""

        def retried_and_running() -> bool:
            self.kubectl("annotate", "pod", pod, f"try={uuid.uuid4()}", "--overwrite")
            try:
                self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=10s")
            except Rejected:
                return False
            return True

        self.cluster.until(retried_and_running, within=180)

    def exec(self, pod: str, script: str, container: str = "main") -> str:
        return self.kubectl("exec", pod, "-c", container, "--", "sh", "-c", script).strip()

    def channels_in(self, pod: str, container: str = "main") -> list[str]:
        listing = self.exec(pod, "ls /dev/nvidia-caps-imex-channels 2>/dev/null; true", container)
        return listing.split()

    def prepare_error(self, pod: str, within: float = 180) -> str:
        """From the kubelet's Event, other than that the driver is not registered yet."""
        found: list[str] = []

        def reported() -> bool:
            events = self.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
            messages = [e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"]
            found.extend(message for message in messages if "is not registered" not in message)
            return bool(found)

        self.cluster.until(reported, within)
        return found[0]

    def prepare_seconds(self, node: str, claim: str) -> float:
        """How long the first, failed prepare took, according to the log of `imex node`."""
        name = f"{self.name}/{claim}"
        self.cluster.until(lambda: self.cluster.logged_at(node, "claim failed", name))
        begun, ended = (self.cluster.logged_at(node, event, name)[0] for event in ("preparing", "claim failed"))
        return (ended - begun).total_seconds()
