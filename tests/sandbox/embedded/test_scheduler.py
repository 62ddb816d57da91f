"""Where pods run, and which devices their claims get: kube-scheduler first, then the embedded scheduler."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from imex_sandbox.embedded import server as embedded_server
from imex_sandbox.embedded.kinds import CLAIMS, CLASSES, NODES, PODS
from imex_sandbox.embedded.nodelifecycle import follow_nodes
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.scheduler import schedule
from imex_sandbox.embedded.storage import Key
from tests.sandbox.embedded.conftest import MERGE_PATCH, Api
from tests.sandbox.embedded.test_objects import DRA

DRIVER = "gpu.example.com"
ANTI, SAME = "podAntiAffinity", "podAffinity"


class Racks:
    """Two racks, a and b, of two nodes with four GPUs each. No kubelet: pods are only assigned."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.nodes = {f"{api.namespace}-{name}": name for name in ("a0", "a1", "b0", "b1")}

    async def start(self) -> None:
        for node, name in self.nodes.items():
            resources = {"cpu": "8", "memory": "16Gi", "pods": "10", "example.com/gpu": "4"}
            ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
            labels = {
                "rack": name[0],
                "number": name[1],
                "test": self.api.namespace,
                "kubernetes.io/hostname": node,
            }
            status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
            await self.api.request(
                "POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}, "status": status}
            )
        for node in self.nodes:
            await self.api.until_that(f"/api/v1/nodes/{node}", lambda found: not found["spec"].get("taints"))

    async def stop(self) -> None:
        for node in self.nodes:
            await self.api.request("DELETE", f"/api/v1/nodes/{node}")

    async def create(self, name: str, *, labels: dict[str, str] | None = None, gpus: int = 0, **spec: Any) -> None:
        selector = {"test": self.api.namespace, **spec.pop("nodeSelector", {})}
        limits = {"limits": {"example.com/gpu": gpus}} if gpus else {}
        resources = {**limits, **spec.pop("resources", {})}
        container = {"name": "main", "image": "registry.example/app:1", "resources": resources}
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "automountServiceAccountToken": False,
                "nodeSelector": selector,
                "containers": [container],
                **spec,
            },
        }
        code, created = await self.api.request("POST", self.api.path("pods", group="v1"), body)
        assert code == 201, created

    async def node_of(self, name: str) -> str:
        """As it was named above."""
        path = self.api.path("pods", name, group="v1")
        pod = await self.api.until_that(path, lambda found: found["spec"].get("nodeName"))
        return self.nodes[pod["spec"]["nodeName"]]

    async def place(self, name: str, **spec: Any) -> str:
        await self.create(name, **spec)
        return await self.node_of(name)

    async def refusal(self, name: str, **spec: Any) -> str:
        """Why no node can run it."""

        def reason(pod: Any) -> Any:
            conditions = pod["status"].get("conditions") or ()
            return next((one for one in conditions if one.get("reason") == "Unschedulable"), None)

        await self.create(name, **spec)
        pod = await self.api.until_that(self.api.path("pods", name, group="v1"), reason)
        message: str = reason(pod)["message"]
        return message


@pytest.fixture
async def racks(cluster_api: Api) -> AsyncIterator[Racks]:
    running = Racks(cluster_api)
    await cluster_api.until(cluster_api.path("serviceaccounts", "default", group="v1"), 200)
    await running.start()
    yield running
    await running.stop()


def required(kind: str, topology: str, **labels: str) -> dict[str, Any]:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def test_a_pod_runs_where_its_selector_and_its_affinity_allow(racks: Racks) -> None:
    assert await racks.place("selected", nodeSelector={"rack": "b", "number": "1"}) == "b1"
    expressions = [
        {"key": "rack", "operator": "NotIn", "values": ["b"]},
        {"key": "number", "operator": "Gt", "values": ["0"]},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert await racks.place("affine", affinity=affinity) == "a1"
    preference = {"matchExpressions": [{"key": "number", "operator": "In", "values": ["0"]}]}
    preferred = [{"weight": 100, "preference": preference}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    assert await racks.place("preferring", nodeSelector={"rack": "b"}, affinity=affinity) == "b0"
    message = await racks.refusal("nowhere", nodeSelector={"rack": "c"})
    assert "node(s) didn't match Pod's node affinity/selector" in message


async def test_a_taint_needs_a_toleration(racks: Racks) -> None:
    taints = {"spec": {"taints": [{"key": "example.com/only", "value": "x", "effect": "NoSchedule"}]}}
    for node, name in racks.nodes.items():
        if name != "a0":
            await racks.api.request("PATCH", f"/api/v1/nodes/{node}", taints, MERGE_PATCH)
    assert await racks.place("plain") == "a0"
    toleration = {"key": "example.com/only", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
    assert (
        await racks.place("tolerant", nodeSelector={"rack": "b", "number": "0"}, tolerations=[toleration]) == "b0"
    )
    assert "had untolerated taint" in await racks.refusal("other", nodeSelector={"rack": "b"})


async def test_resources_are_used_up(racks: Racks) -> None:
    found = {await racks.place(f"pod-{number}", gpus=4) for number in range(4)}
    assert found == {"a0", "a1", "b0", "b1"}
    assert "Insufficient example.com/gpu" in await racks.refusal("late", gpus=1)
    path = racks.api.path("pods", "pod-0", group="v1")
    await racks.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    assert await racks.node_of("late") in found


async def test_cpu_and_memory_are_quantities(racks: Racks) -> None:
    half = {"requests": {"cpu": "4500m", "memory": "1Gi"}}
    on = {"rack": "a", "number": "0"}
    assert await racks.place("first", nodeSelector=on, resources=half) == "a0"
    assert "Insufficient cpu" in await racks.refusal("second", nodeSelector=on, resources=half)
    much = {"requests": {"memory": "17179869184"}}
    assert "Insufficient memory" in await racks.refusal("third", nodeSelector=on, resources=much)


async def test_a_port_of_the_host_belongs_to_one_pod(racks: Racks) -> None:
    on = {"rack": "a", "number": "0"}

    def listening(**port: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "registry.example/app:1", "ports": [{"containerPort": 80, **port}]}
        return {"nodeSelector": on, "containers": [container]}

    assert await racks.place("first", **listening(hostPort=8080, hostIP="127.0.0.1")) == "a0"
    assert await racks.place("another-address", **listening(hostPort=8080, hostIP="127.0.0.2")) == "a0"
    assert await racks.place("another-protocol", **listening(hostPort=8080, protocol="UDP")) == "a0"
    assert await racks.place("another-port", **listening(hostPort=8081)) == "a0"
    assert await racks.place("of-the-pod", **listening()) == "a0"
    reason = "didn't have free ports for the requested pod ports"
    assert reason in await racks.refusal("same", **listening(hostPort=8080))
    assert await racks.place("host-network", hostNetwork=True, **listening()) == "a0"
    assert reason in await racks.refusal("same-of-the-host", **listening(hostPort=80))


async def test_pods_that_belong_together_fill_one_rack_and_no_other(racks: Racks) -> None:
    labels = {"job": "one"}
    affinity = required(SAME, "rack", **labels)
    first = await racks.place("one-0", gpus=4, labels=labels, affinity=affinity)
    second = await racks.place("one-1", gpus=4, labels=labels, affinity=affinity)
    assert first[0] == second[0]
    assert first != second
    message = await racks.refusal("one-2", gpus=4, labels=labels, affinity=affinity)
    assert "Insufficient example.com/gpu" in message
    assert "didn't match pod affinity rules" in message


async def test_pods_that_must_be_apart_are(racks: Racks) -> None:
    labels = {"job": "apart"}
    affinity = required(ANTI, "rack", **labels)
    found = [await racks.place(f"apart-{number}", labels=labels, affinity=affinity) for number in range(2)]
    assert {name[0] for name in found} == {"a", "b"}
    message = await racks.refusal("apart-2", labels=labels, affinity=affinity)
    assert "anti-affinity rules" in message
    message = await racks.refusal("plain-but-selected", labels=labels)
    assert "existing pods anti-affinity rules" in message


async def test_spread_constraints_balance_racks(racks: Racks) -> None:
    labels = {"job": "spread"}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    found = [
        await racks.place(f"spread-{number}", labels=labels, gpus=2, topologySpreadConstraints=[constraint])
        for number in range(4)
    ]
    assert sorted(name[0] for name in found) == ["a", "a", "b", "b"]
    for number in ("0", "1"):
        await racks.place(f"filler-{number}", gpus=2, nodeSelector={"rack": "b", "number": number})
    spread = {"labels": labels, "gpus": 2, "topologySpreadConstraints": [constraint]}
    assert (await racks.place("spread-4", **spread))[0] == "a"
    message = await racks.refusal("spread-5", **spread)
    assert "didn't match pod topology spread constraints" in message


async def test_groups_of_one_workload_can_be_in_different_racks(racks: Racks) -> None:
    """As `imex migrate` writes it for LeaderWorkerSets."""
    affinity = required(SAME, "rack", job="lws")
    affinity[SAME]["requiredDuringSchedulingIgnoredDuringExecution"][0]["matchLabelKeys"] = ["group"]
    for group, rack in (("0", "a"), ("1", "b")):
        labels = {"job": "lws", "group": group}
        first = await racks.place(f"{group}-0", labels=labels, affinity=affinity, nodeSelector={"rack": rack})
        second = await racks.place(f"{group}-1", labels=labels, affinity=affinity)
        assert (first[0], second[0]) == (rack, rack)


async def test_a_spread_constraint_can_count_each_group_for_itself(racks: Racks) -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"job": "spread"}},
        "matchLabelKeys": ["group"],
    }
    for group in ("0", "1"):
        labels = {"job": "spread", "group": group}
        spread = {"labels": labels, "topologySpreadConstraints": [constraint]}
        assert (await racks.place(f"{group}-0", **spread, nodeSelector={"number": "0"}))[0] in ("a", "b")
        on_a = {"nodeSelector": {"rack": "a"}}
        await racks.place(f"{group}-1", labels=labels, **on_a)
        await racks.place(f"{group}-2", labels=labels, **on_a)
        assert (await racks.place(f"{group}-3", **spread))[0] == "b"


async def test_a_spread_constraint_can_need_more_domains_than_there_are(racks: Racks) -> None:
    labels = {"job": "wide"}
    constraint = {
        "maxSkew": 1,
        "minDomains": 3,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    spread = {"labels": labels, "topologySpreadConstraints": [constraint]}
    found = [await racks.place(f"wide-{number}", **spread) for number in range(2)]
    assert sorted(name[0] for name in found) == ["a", "b"]
    message = await racks.refusal("wide-2", **spread)
    assert "didn't match pod topology spread constraints" in message


async def test_another_policy_of_a_spread_constraint_is_done_or_not_supported(racks: Racks) -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"job": "policy"}},
        "nodeTaintsPolicy": "Honor",
    }
    spread = {"labels": {"job": "policy"}, "topologySpreadConstraints": [constraint]}
    if racks.api.is_real:
        assert await racks.place("policy", **spread)
    else:
        message = await racks.refusal("policy", **spread)
        assert message == "nodeTaintsPolicy: Honor is not supported by the embedded scheduler"


class Devices:
    def __init__(self, racks: Racks) -> None:
        self._racks, self._api = racks, racks.api
        self.device_class = f"{self._api.namespace}.example.com"

    async def publish(self, **attributes: dict[str, Any]) -> None:
        """A device of each name on every node."""
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{self.driver}"'}}]}
        await self._api.request(
            "POST", f"/apis/{DRA}/deviceclasses", {"metadata": {"name": self.device_class}, "spec": spec}
        )
        for node in self._racks.nodes:
            devices = [{"name": name, "attributes": values} for name, values in attributes.items()]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            slice_spec = {"nodeName": node, "driver": self.driver, "pool": pool, "devices": devices}
            body = {"metadata": {"name": f"{node}-slice"}, "spec": slice_spec}
            code, created = await self._api.request("POST", f"/apis/{DRA}/resourceslices", body)
            assert code == 201, created

    @property
    def driver(self) -> str:
        return f"{self._api.namespace}.{DRIVER}"

    async def template(self, name: str, expression: str = "", count: int = 1) -> None:
        exactly: dict[str, Any] = {"deviceClassName": self.device_class, "count": count}
        if expression:
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        parameters = {"driver": self.driver, "parameters": {"kind": "Test"}}
        claim = {"devices": {"requests": [{"name": "r", "exactly": exactly}], "config": [{"opaque": parameters}]}}
        body = {"metadata": {"name": name}, "spec": {"metadata": {"labels": {"from": name}}, "spec": claim}}
        path = self._api.path("resourceclaimtemplates", group=DRA)
        code, created = await self._api.request("POST", path, body)
        assert code == 201, created

    async def claim_of(self, pod: str) -> Any:
        """When it is reserved."""
        path = self._api.path("pods", pod, group="v1")
        found = await self._api.until_that(path, lambda one: one["status"].get("resourceClaimStatuses"))
        name = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self._api.path("resourceclaims", name, group=DRA)
        return await self._api.until_that(claim, lambda one: (one.get("status") or {}).get("reservedFor"))


def claiming(template: str) -> dict[str, Any]:
    return {
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": template}],
        "resources": {"claims": [{"name": "devices"}]},
    }


@pytest.fixture
def devices(racks: Racks) -> Devices:
    return Devices(racks)


async def test_a_claim_from_a_template_is_allocated_and_reserved(racks: Racks, devices: Devices) -> None:
    await devices.publish(one={"kind": {"string": "channel"}, "id": {"int": 0}})
    await devices.template("channel", f'device.attributes["{devices.driver}"].kind == "channel"')
    node = await racks.place("pod", **claiming("channel"))
    claim = await devices.claim_of("pod")
    metadata, status = claim["metadata"], claim["status"]
    assert metadata["name"].startswith("pod-devices-")
    assert metadata["labels"] == {"from": "channel"}
    assert metadata["annotations"]["resource.kubernetes.io/pod-claim-name"] == "devices"
    assert [one["kind"] for one in metadata["ownerReferences"]] == ["Pod"]
    assert metadata["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    (result,) = status["allocation"]["devices"]["results"]
    name = next(full for full, short in racks.nodes.items() if short == node)
    assert (result["request"], result["driver"], result["pool"], result["device"]) == (
        "r",
        devices.driver,
        name,
        "one",
    )
    (config,) = status["allocation"]["devices"]["config"]
    assert (config["source"], config["opaque"]["parameters"]) == ("FromClaim", {"kind": "Test"})
    (term,) = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == [name]
    assert [one["name"] for one in status["reservedFor"]] == ["pod"]


async def test_a_pod_without_its_template_has_one_event_that_says_so(racks: Racks) -> None:
    await racks.create("pod", **claiming("chanel"))
    path = racks.api.path("events", group="v1")
    found = await racks.api.until_that(path, lambda one: one["items"])
    (event,) = found["items"]
    assert (event["reason"], event["type"]) == ("FailedResourceClaimCreation", "Warning")
    assert event["involvedObject"]["name"] == "pod"
    assert 'resource claim template "chanel": ' in event["message"]
    assert '"chanel" not found' in event["message"]


async def test_a_device_belongs_to_one_claim_until_its_pod_has_ended(racks: Racks, devices: Devices) -> None:
    await devices.publish(one={"id": {"int": 0}})
    await devices.template("any")
    where = {"rack": "a", "number": "0"}
    assert await racks.place("first", nodeSelector=where, **claiming("any")) == "a0"
    assert "cannot allocate all claims" in await racks.refusal("second", nodeSelector=where, **claiming("any"))
    path = racks.api.path("pods", "first", group="v1")
    await racks.api.request("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}}, MERGE_PATCH)
    assert await racks.node_of("second") == "a0"


async def test_a_claim_that_is_allocated_keeps_other_pods_on_its_node(racks: Racks, devices: Devices) -> None:
    await devices.publish(one={"id": {"int": 0}})
    await devices.template("any")
    await racks.place("first", nodeSelector={"rack": "a", "number": "0"}, **claiming("any"))
    claim = (await devices.claim_of("first"))["metadata"]["name"]
    spec = {**claiming(""), "resourceClaims": [{"name": "devices", "resourceClaimName": claim}]}
    said = await racks.refusal("second", nodeSelector={"rack": "b"}, **spec)
    assert "2 resourceclaim not available on the node" in said


async def test_a_claim_can_need_several_devices(racks: Racks, devices: Devices) -> None:
    await devices.publish(**{f"d{number}": {"id": {"int": number}} for number in range(3)})
    await devices.template("two", f'device.attributes["{devices.driver}"].id > 0', count=2)
    await racks.create("pod", **claiming("two"))
    claim = await devices.claim_of("pod")
    results = claim["status"]["allocation"]["devices"]["results"]
    assert sorted(one["device"] for one in results) == ["d1", "d2"]
    await devices.template("three", f'device.attributes["{devices.driver}"].id > 0', count=3)
    assert "cannot allocate all claims" in await racks.refusal("greedy", **claiming("three"))


async def test_a_domain_that_a_device_does_not_have_is_empty(racks: Racks, devices: Devices) -> None:
    await devices.publish(one={"id": {"int": 0}})
    await devices.template("absent", 'has(device.attributes["gpu.nvidia.com"].index)')
    assert "cannot allocate all claims" in await racks.refusal("pod", **claiming("absent"))
    both = 'has(device.attributes["gpu.nvidia.com"].x) || has(device.capacity["gpu.nvidia.com"].memory)'
    await devices.template("either", f"!({both})")
    assert await racks.place("other", **claiming("either"))


async def test_a_selector_that_reads_a_missing_attribute_keeps_the_pod_from_every_node(
    racks: Racks, devices: Devices
) -> None:
    await devices.publish(one={"id": {"int": 0}})
    await devices.template("broken", f'device.attributes["{devices.driver}"].color == "green"')
    await racks.create("pod", **claiming("broken"))
    path = racks.api.path("pods", "pod", group="v1")

    def reported(pod: Any) -> Any:
        conditions = pod["status"].get("conditions") or ()
        return next((one for one in conditions if one["status"] == "False" and "color" in one["message"]), None)

    pod = await racks.api.until_that(path, reported)
    assert not pod["spec"].get("nodeName")


def test_pods_of_one_pass_take_account_of_each_other() -> None:
    """Requests and anti-affinity of pods that were assigned a moment ago, in the same pass."""
    objects = embedded_server.Api().objects
    for number in range(3):
        ready = [{"type": "Ready", "status": "True"}]
        status = {"conditions": ready, "allocatable": {"pods": "10", "cpu": "2"}}
        metadata = {"name": f"n{number}", "labels": {"kubernetes.io/hostname": f"n{number}"}}
        objects.create(NODES, "", {"metadata": metadata, "status": status}, "test")
    follow_nodes(objects, objects.now())
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    main: dict[str, Any] = {"name": "main", "image": "any"}
    large = {**main, "resources": {"requests": {"cpu": "2"}}}

    def create(name: str, **spec: Any) -> None:
        metadata = {"name": name, "labels": {"app": "a" if name.startswith("p") else "q"}}
        objects.create(PODS, "default", {"metadata": metadata, "spec": {"containers": [main], **spec}}, "test")

    create("p0", affinity=affinity)
    for number in range(1, 4):
        create(f"p{number}")
    for number in range(4):
        create(f"q{number}", containers=[large])
    assert schedule(objects) == 7
    assigned = {
        key.name: one.document["spec"].get("nodeName") for key, one in objects.storage.all(PODS, "default")
    }
    assert assigned["p0"] not in {assigned[f"p{number}"] for number in range(1, 4)}
    assert sorted(filter(None, (assigned[f"q{number}"] for number in range(4)))) == ["n0", "n1", "n2"]


def ready_node(objects: Objects, name: str) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "10", "cpu": "2"}}
    objects.create(NODES, "", {"metadata": {"name": name}, "status": status}, "test")
    follow_nodes(objects, objects.now())


def test_a_pod_that_cannot_be_handled_says_so_and_does_not_stop_others() -> None:
    objects = embedded_server.Api().objects
    ready_node(objects, "n")
    objects.create(CLASSES, "", {"metadata": {"name": "any"}, "spec": {}}, "test")
    exactly = {"deviceClassName": "any", "allocationMode": "malformed"}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    objects.storage.put(CLAIMS, Key("default", "c"), claim)
    main = {"name": "main", "image": "any"}
    claims = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    for name, spec in (("bad", claims), ("good", {})):
        body = {"metadata": {"name": name}, "spec": {"containers": [main], **spec}}
        objects.create(PODS, "default", body, "test")
    assert schedule(objects) == 1
    assert objects.get(PODS, Key("default", "good")).document["spec"]["nodeName"] == "n"
    (condition,) = objects.get(PODS, Key("default", "bad")).document["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert "cannot handle this object" in condition["message"]


def test_the_oldest_pod_is_scheduled_first() -> None:
    """Also if it was changed after the creation of the others."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    objects = embedded_server.Api().objects
    objects.now = lambda: now
    ready_node(objects, "n")
    main = {"name": "main", "image": "any", "resources": {"requests": {"cpu": "2"}}}
    for name in ("old", "new"):
        objects.create(PODS, "default", {"metadata": {"name": name}, "spec": {"containers": [main]}}, "test")
        now += timedelta(seconds=1)
    objects.patch(PODS, Key("default", "old"), {"metadata": {"labels": {"a": "b"}}})
    assert schedule(objects) == 1
    assert objects.get(PODS, Key("default", "old")).document["spec"]["nodeName"] == "n"
