"""What a test of the kubelet acts on: a node, fake plugins, claims and pods, bound without the scheduler.

Claims are allocated and reserved by hand before the pod is bound, so that the test controls when the kubelet sees
what, and no ResourceSlice needs to exist.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from imex_sandbox.kubernetes import images
from tests.sandbox.kubelet.api import CLAIMS, EVENTS, NAMESPACE, PODS, Api
from tests.sandbox.kubelet.fakeplugin import FakePlugin
from tests.sandbox.kubelet.implementations import Kubelet
from tests.waiting import LIMIT, until

V1 = ("v1.DRAPlugin",)


def container(script: str, name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": images.BUSYBOX, "command": ["sh", "-c", script], **more}


RUN_FOREVER = container("trap 'exit 0' TERM; sleep 10000 & wait")
"""Exits as soon as it is terminated: pid 1 ignores SIGTERM unless it sets a trap."""


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:6]}"


def never(condition: Callable[[], bool], *, within: float) -> None:
    """Fails if the condition becomes true."""
    with pytest.raises(AssertionError, match=r"^waited"):
        until(condition, within=within)


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
        """Its status; the state is empty while the kubelet has not written one."""
        status = self.status
        statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return next((entry for entry in statuses if entry["name"] == name), {"state": {}})

    def state(self, name: str = "c") -> str:
        return next(iter(self.container(name)["state"]), "")

    def terminated(self, name: str = "c") -> Any:
        return self.container(name)["state"]["terminated"]

    def events(self, reason: str) -> list[str]:
        found = self._api.items(
            EVENTS, fieldSelector=f"involvedObject.kind=Pod,involvedObject.uid={self.uid},reason={reason}"
        )
        return [event["message"] for event in found]

    def exists(self) -> bool:
        found = self._api.find(self.path)
        return found is not None and found["metadata"]["uid"] == self.uid

    def until(self, condition: Callable[[], bool], within: float = LIMIT) -> None:
        try:
            until(condition, within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._describe()}") from error

    def until_status(self, condition: Callable[[Any], bool]) -> Any:
        """Returns the status that met the condition: a later one may differ."""
        seen: list[Any] = []

        def met() -> bool:
            seen.append(self.status)
            return condition(seen[-1])

        self.until(met)
        return seen[-1]

    def until_ready(self) -> None:
        self.until(lambda: self.condition("Ready") == "True")

    def until_phase(self, phase: str) -> None:
        self.until(lambda: self.phase == phase)

    def until_event(self, reason: str, within: float = LIMIT) -> str:
        self.until(lambda: bool(self.events(reason)), within)
        return self.events(reason)[0]

    def until_removed(self) -> None:
        self.until(lambda: not self.exists())

    def delete(self, *, grace: int | None = None) -> None:
        self._api.delete(self.path, grace=grace)

    def touch(self) -> None:
        """A change of its metadata makes the kubelet sync the pod at once."""
        self._api.patch(self.path, {"metadata": {"annotations": {"touched": unique("t")}}})

    def _describe(self) -> Any:
        found = self._api.find(self.path)
        events = self._api.items(EVENTS, fieldSelector=f"involvedObject.kind=Pod,involvedObject.uid={self.uid}")
        return found and found["status"], [(event["reason"], event["message"]) for event in events]


class KubeletFixture:
    def __init__(self, api: Api, kubelet: Kubelet) -> None:
        self.api = api
        self.kubelet = kubelet
        self.driver = f"{unique('d')}.imex-dra.io"
        self._plugins: list[FakePlugin] = []
        self._pods: list[Pod] = []

    def plugin(self, instance: str = "a", *, driver: str = "", versions: Sequence[str] = V1) -> FakePlugin:
        plugin = FakePlugin(self.kubelet.directory, driver or self.driver, instance, versions=tuple(versions))
        self._plugins.append(plugin)
        plugin.start()
        return plugin

    def registered_plugin(self, instance: str = "a") -> FakePlugin:
        plugin = self.plugin(instance)
        plugin.until_registered()
        return plugin

    def claim(self, *, driver: str = "") -> str:
        """Allocated, but not reserved for any pod."""
        name = unique("claim")
        request = {"name": "one", "exactly": {"deviceClassName": "any"}}
        self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        result = {"request": "one", "driver": driver or self.driver, "pool": "pool", "device": name}
        allocation = {"devices": {"results": [result]}}
        self.api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation}})
        return name

    def pod(
        self,
        *claims: str,
        containers: Sequence[dict[str, Any]] = (RUN_FOREVER,),
        metadata: dict[str, Any] | None = None,
        **spec: Any,
    ) -> Pod:
        """Bound to the node. By default it has one container `c`, which lists all claims and runs forever."""
        pod = self._create(claims, containers, metadata or {}, spec)
        for claim in claims:
            self._reserve(claim, pod)
        self._bind(pod)
        return pod

    def _create(
        self,
        claims: Sequence[str],
        containers: Sequence[dict[str, Any]],
        metadata: dict[str, Any],
        spec: dict[str, Any],
    ) -> Pod:
        resources = {"claims": [{"name": claim} for claim in claims]} if claims else {}
        full_spec = {
            "schedulerName": "by-hand",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [{"resources": resources, **container} for container in containers],
            "tolerations": [{"operator": "Exists"}],
            **spec,
        }
        created = self.api.create(PODS, {"metadata": {"name": unique("pod"), **metadata}, "spec": full_spec})
        pod = Pod(self.api, created["metadata"]["name"], created["metadata"]["uid"])
        self._pods.append(pod)
        return pod

    def _reserve(self, claim: str, pod: Pod) -> None:
        path = f"{CLAIMS}/{claim}"
        consumers = self.api.get(path)["status"].get("reservedFor", [])
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        self.api.patch(f"{path}/status", {"status": {"reservedFor": [*consumers, consumer]}})

    def _bind(self, pod: Pod) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.kubelet.name}
        binding = {"metadata": {"name": pod.name, "namespace": NAMESPACE}, "target": target}
        self.api.create(f"{pod.path}/binding", binding)

    def clean_up(self) -> None:
        """Pods before plugins: the plugins must unprepare the pods' claims."""
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
            pod.until_removed()
        for plugin in self._plugins:
            plugin.stop()
