"""Where a test acts: one node, a driver's plugin on it, claims and pods, bound without the scheduler.

Claims are allocated and reserved by hand before the pod is bound, so that a test says itself when the kubelet
sees what, and no ResourceSlice needs to exist.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from imex_dra.sandbox.kubernetes import images
from tests.kubelet.api import CLAIMS, EVENTS, NAMESPACE, PODS, Api
from tests.kubelet.implementations import Kubelet
from tests.kubelet.plugin import Plugin
from tests.sandbox.waiting import eventually

V1 = ("v1.DRAPlugin",)
WITHIN = 60.0
"""Seconds: machines are slow and noisy."""


def container(script: str, name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": images.BUSYBOX, "command": ["sh", "-c", script], **more}


FOR_EVER = container("trap 'exit 0' TERM; sleep 10000 & wait")
"""Ends as soon as it is asked to. (As pid 1, whatever sets no trap is deaf to SIGTERM.)"""


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:6]}"


class Pod:
    def __init__(self, api: Api, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        self.path = f"{PODS}/{name}"
        self._api = api

    @property
    def status(self) -> Any:
        return self._api.get(self.path)["status"]

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    def condition(self, kind: str) -> str:
        found = [c["status"] for c in self.status.get("conditions", ()) if c["type"] == kind]
        return str(found[0]) if found else ""

    def container(self, name: str = "c") -> Any:
        """Its status; empty while the kubelet has said nothing."""
        status = self.status
        listed = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return next((entry for entry in listed if entry["name"] == name), {"state": {}})

    def state(self, name: str = "c") -> str:
        return next(iter(self.container(name)["state"]), "")

    def events(self, reason: str) -> list[str]:
        found = self._api.items(EVENTS, fieldSelector=f"involvedObject.uid={self.uid},reason={reason}")
        return [event["message"] for event in found]

    def exists(self) -> bool:
        found = self._api.find(self.path)
        return found is not None and found["metadata"]["uid"] == self.uid

    def until(self, condition: Callable[[], bool], within: float = WITHIN) -> None:
        if not eventually(condition, within):
            raise AssertionError(f"not within {within:g} s: {self._told()}")

    def until_status(self, condition: Callable[[Any], bool]) -> Any:
        """The very status that met it: the next may say something else."""
        seen: list[Any] = []

        def met() -> bool:
            seen.append(self.status)
            return condition(seen[-1])

        self.until(met)
        return seen[-1]

    def until_running(self) -> None:
        self.until(lambda: self.condition("Ready") == "True")

    def until_phase(self, phase: str, within: float = WITHIN) -> None:
        self.until(lambda: self.phase == phase, within)

    def until_event(self, reason: str, within: float = WITHIN) -> str:
        self.until(lambda: bool(self.events(reason)), within)
        return self.events(reason)[0]

    def until_gone(self, within: float = WITHIN) -> None:
        self.until(lambda: not self.exists(), within)

    def delete(self, *, grace: int | None = None) -> None:
        self._api.delete(self.path, grace=grace)

    def nudge(self) -> None:
        """A change of its metadata makes a kubelet look at a pod again at once."""
        self._api.patch(self.path, {"metadata": {"annotations": {"nudge": unique("n")}}})

    def _told(self) -> Any:
        found = self._api.find(self.path)
        said = self._api.items(EVENTS, fieldSelector=f"involvedObject.uid={self.uid}")
        return found and found["status"], [(event["reason"], event["message"]) for event in said]


class Stage:
    def __init__(self, api: Api, kubelet: Kubelet) -> None:
        self.api = api
        self.kubelet = kubelet
        self.driver = f"{unique('d')}.imex-dra.io"
        self._plugins: list[Plugin] = []
        self._pods: list[Pod] = []

    def plugin(self, instance: str = "a", *, driver: str = "", versions: Sequence[str] = V1) -> Plugin:
        plugin = Plugin(self.kubelet.directory, driver or self.driver, instance, versions=tuple(versions))
        self._plugins.append(plugin)
        plugin.start()
        return plugin

    def registered_plugin(self, instance: str = "a") -> Plugin:
        plugin = self.plugin(instance)
        plugin.until_registered()
        return plugin

    def claim(self, *, driver: str = "") -> str:
        """Allocated, for nobody yet."""
        name = unique("claim")
        request = {"name": "one", "exactly": {"deviceClassName": "any"}}
        self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        result = {"request": "one", "driver": driver or self.driver, "pool": "pool", "device": name}
        allocation = {"devices": {"results": [result]}}
        self.api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation}})
        return name

    def pod(self, *claims: str, reserved: bool = True, **what: Any) -> Pod:
        """Bound to the node; by default one container `c` that has all claims and stays."""
        pod = self.unbound_pod(*claims, **what)
        for claim in claims if reserved else ():
            self.reserve(claim, pod)
        self.bind(pod)
        return pod

    def unbound_pod(
        self,
        *claims: str,
        containers: Sequence[dict[str, Any]] = (FOR_EVER,),
        metadata: dict[str, Any] | None = None,
        **spec: Any,
    ) -> Pod:
        everything = {"claims": [{"name": claim} for claim in claims]} if claims else {}
        described = {
            "schedulerName": "by-hand",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [{"resources": everything, **container} for container in containers],
            "tolerations": [{"operator": "Exists"}],
            **spec,
        }
        made = self.api.create(PODS, {"metadata": {"name": unique("pod"), **(metadata or {})}, "spec": described})
        pod = Pod(self.api, made["metadata"]["name"], made["metadata"]["uid"])
        self._pods.append(pod)
        return pod

    def reserve(self, claim: str, pod: Pod) -> None:
        path = f"{CLAIMS}/{claim}"
        users = self.api.get(path)["status"].get("reservedFor", [])
        user = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        self.api.patch(f"{path}/status", {"status": {"reservedFor": [*users, user]}})

    def bind(self, pod: Pod) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.kubelet.name}
        binding = {"metadata": {"name": pod.name, "namespace": NAMESPACE}, "target": target}
        self.api.create(f"{pod.path}/binding", binding)

    def clear(self) -> None:
        """Pods first: their claims are unprepared by the plugins."""
        for plugin in self._plugins:
            plugin.errors.clear()
            plugin.skipped.clear()
            for gate in plugin.gate.values():
                gate.set()
        for pod in self._pods:
            found = self.api.find(pod.path)
            if found is not None and found["metadata"].get("finalizers"):
                self.api.patch(pod.path, {"metadata": {"finalizers": None}})
            pod.delete(grace=1)
        for pod in self._pods:
            pod.until_gone()
        for plugin in self._plugins:
            plugin.stop()
