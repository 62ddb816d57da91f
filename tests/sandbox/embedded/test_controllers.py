"""Garbage, namespaces, nodes, Jobs and StatefulSets: kube-controller-manager first, then the embedded one."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from imex_sandbox.embedded import server as embedded_server
from imex_sandbox.embedded.kinds import EVENTS, JOBS, NAMESPACES, NODES, PODS, STATEFUL_SETS, Kind, Kinds
from imex_sandbox.embedded.nodelifecycle import evict_pods, follow_nodes
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Key, Storage
from imex_sandbox.embedded.workloads import follow_jobs, follow_stateful_sets
from tests.sandbox.embedded.conftest import MERGE_PATCH, Api


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


async def create(api: Api, plural: str, group: str, body: dict[str, Any]) -> Any:
    code, created = await api.request("POST", api.path(plural, group=group), body)
    assert code == 201, created
    return created


async def test_what_is_owned_is_deleted_with_its_last_owner(cluster_api: Api) -> None:
    api = cluster_api
    owners = [await create(api, "configmaps", "v1", config_map(name)) for name in ("one", "two")]
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
        for one in owners
    ]
    await create(api, "configmaps", "v1", config_map("both", ownerReferences=references))
    await create(api, "configmaps", "v1", config_map("first", ownerReferences=references[:1]))
    await create(api, "configmaps", "v1", config_map("free"))
    await api.request("DELETE", api.path("configmaps", "one", group="v1"))
    await api.until(api.path("configmaps", "first", group="v1"), 404)
    assert (await api.request("GET", api.path("configmaps", "both", group="v1")))[0] == 200
    await api.request("DELETE", api.path("configmaps", "two", group="v1"))
    await api.until(api.path("configmaps", "both", group="v1"), 404)
    assert (await api.request("GET", api.path("configmaps", "free", group="v1")))[0] == 200


async def test_an_object_that_is_deleted_in_the_foreground_goes_after_its_dependents(cluster_api: Api) -> None:
    api, path = cluster_api, cluster_api.path
    owners = [await create(api, "configmaps", "v1", config_map(name)) for name in ("owner", "another")]
    first, second = (
        {"apiVersion": "v1", "kind": "ConfigMap", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
        for one in owners
    )
    held = {"ownerReferences": [{**first, "blockOwnerDeletion": True}], "finalizers": ["example.com/hold"]}
    await create(api, "configmaps", "v1", config_map("held", **held))
    await create(api, "configmaps", "v1", config_map("free", ownerReferences=[first]))
    shared = [{**first, "blockOwnerDeletion": True}, second]
    await create(api, "configmaps", "v1", config_map("shared", ownerReferences=shared))
    code, deleted = await api.request(
        "DELETE", path("configmaps", "owner", group="v1"), {"propagationPolicy": "Foreground"}
    )
    assert (code, deleted["metadata"]["finalizers"]) == (200, ["foregroundDeletion"])
    await api.until(path("configmaps", "free", group="v1"), 404)
    deleting = await api.until_that(
        path("configmaps", "held", group="v1"), lambda found: found["metadata"].get("deletionTimestamp")
    )
    assert (await api.request("GET", path("configmaps", "owner", group="v1")))[0] == 200
    released = {"metadata": {"finalizers": None, "resourceVersion": deleting["metadata"]["resourceVersion"]}}
    await api.request("PATCH", path("configmaps", "held", group="v1"), released, MERGE_PATCH)
    await api.until(path("configmaps", "held", group="v1"), 404)
    await api.until(path("configmaps", "owner", group="v1"), 404)
    assert (await api.request("GET", path("configmaps", "shared", group="v1")))[0] == 200


async def test_a_namespace_gets_a_service_account_and_takes_its_content_along(cluster_api: Api) -> None:
    api = cluster_api
    await api.until(api.path("serviceaccounts", "default", group="v1"), 200)
    await create(api, "configmaps", "v1", config_map("kept", finalizers=["example.com/a"]))
    path = f"/api/v1/namespaces/{api.namespace}"
    await api.request("DELETE", path)
    found = await api.until_that(
        api.path("configmaps", "kept", group="v1"), lambda one: one["metadata"].get("deletionTimestamp")
    )
    assert found["metadata"]["finalizers"] == ["example.com/a"]
    _, terminating = await api.request("GET", path)
    assert terminating["status"]["phase"] == "Terminating"
    patch = {"metadata": {"finalizers": None}}
    await api.request("PATCH", api.path("configmaps", "kept", group="v1"), patch, MERGE_PATCH)
    await api.until(path, 404)


async def test_the_taints_of_a_node_follow_its_condition(cluster_api: Api) -> None:
    api, path = cluster_api, f"/api/v1/nodes/{cluster_api.namespace}"
    await api.request("POST", "/api/v1/nodes", {"metadata": {"name": api.namespace}})

    def keys(node: Any) -> list[tuple[str, str]]:
        return sorted((one["key"], one["effect"]) for one in node["spec"].get("taints") or ())

    async def report(status: str) -> None:
        condition = {"type": "Ready", "status": status, "reason": "Test", "message": ""}
        await api.request("PATCH", f"{path}/status", {"status": {"conditions": [condition]}}, MERGE_PATCH)

    _, node = await api.request("GET", path)
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in keys(node)
    await report("True")
    await api.until_that(path, lambda found: not keys(found))
    await report("False")
    # Whether NoExecute follows depends, in a real cluster, on how many other nodes are not ready.
    await api.until_that(path, lambda found: ("node.kubernetes.io/not-ready", "NoSchedule") in keys(found))
    await report("True")
    await api.until_that(path, lambda found: not keys(found))
    await api.request("PATCH", path, {"spec": {"unschedulable": True}}, MERGE_PATCH)
    expected = [("node.kubernetes.io/unschedulable", "NoSchedule")]
    await api.until_that(path, lambda found: keys(found) == expected)
    await api.request("DELETE", path)


def test_a_silent_node_becomes_unknown_after_its_grace_period() -> None:
    """Only here: with kube-controller-manager it takes almost a minute."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    objects = Objects(Storage(), now=lambda: start, new_uid=lambda: "1", kinds=Kinds())
    heard = {"lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", **heard}
    objects.create(NODES, "", {"metadata": {"name": "n"}, "status": {"conditions": [ready]}})

    def state() -> tuple[str, list[str]]:
        node = objects.get(NODES, Key("", "n")).document
        taints = (node.get("spec") or {}).get("taints") or ()
        return node["status"]["conditions"][0]["status"], sorted({one["key"] for one in taints})

    follow_nodes(objects, start + timedelta(seconds=39))
    assert state() == ("True", [])
    follow_nodes(objects, start + timedelta(seconds=41))
    assert state() == ("Unknown", ["node.kubernetes.io/unreachable"])


def test_pods_leave_a_node_whose_taint_they_do_not_tolerate_any_longer() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    objects = Objects(Storage(), now=lambda: start, new_uid=lambda: "1", kinds=Kinds())
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    objects.create(NODES, "", {"metadata": {"name": "n"}, "spec": {"taints": [taint]}})
    objects.create(NAMESPACES, "", {"metadata": {"name": "ns"}})
    exists = {"key": taint["key"], "operator": "Exists", "effect": "NoExecute"}
    for name, tolerations in (
        ("intolerant", []),
        ("patient", [{**exists, "tolerationSeconds": 300}]),
        ("tolerant", [exists]),
    ):
        spec = {"nodeName": "n", "tolerations": tolerations, "terminationGracePeriodSeconds": 0}
        objects.create(PODS, "ns", {"metadata": {"name": name}, "spec": spec})

    def left() -> list[str]:
        return [key.name for key, _ in objects.storage.all(PODS)]

    evict_pods(objects, start + timedelta(seconds=1))
    assert left() == ["patient", "tolerant"]
    evict_pods(objects, start + timedelta(seconds=301))
    assert left() == ["tolerant"]


def template(labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/app:1"}
    nowhere = {"nodeSelector": {"example.com/nowhere": "x"}, "automountServiceAccountToken": False}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **nowhere, **spec}}


class Workload:
    """Its pods, of which the test plays the kubelet."""

    def __init__(self, api: Api, label: str) -> None:
        self.api = api
        self._selector = f"test={label}"

    async def pods(self) -> dict[str, Any]:
        path = self.api.path("pods", group="v1")
        _, found = await self.api.request("GET", path, labelSelector=self._selector)
        return {one["metadata"]["name"]: one for one in found["items"]}

    async def until(self, count: int) -> dict[str, Any]:
        path = self.api.path("pods", group="v1")
        query = {"labelSelector": self._selector}
        await self.api.until_that(path, lambda found: len(found["items"]) == count, **query)
        return await self.pods()

    async def report(self, name: str, phase: str, *, ready: bool = False) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        patch = {"status": {"phase": phase, "conditions": conditions}}
        await self.api.request("PATCH", f"{self.api.path('pods', name, group='v1')}/status", patch, MERGE_PATCH)


@pytest.fixture
async def workload(cluster_api: Api) -> Workload:
    await cluster_api.until(cluster_api.path("serviceaccounts", "default", group="v1"), 200)
    return Workload(cluster_api, "x")


def conditions_of(found: Any) -> set[str]:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return {one["type"] for one in conditions if one["status"] == "True"}


async def test_a_job_is_complete_when_its_pod_has_succeeded(workload: Workload) -> None:
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "backoffLimit": 2}
    await create(workload.api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    (name,) = await workload.until(1)
    assert name.startswith("job-")
    path = workload.api.path("jobs", "job", group="batch/v1")
    await workload.api.until_that(path, lambda found: (found.get("status") or {}).get("active") == 1)
    await workload.report(name, "Succeeded")
    done = await workload.api.until_that(path, lambda found: "Complete" in conditions_of(found))
    assert done["status"]["succeeded"] == 1
    assert "active" not in done["status"]
    assert len(await workload.pods()) == 1


async def test_a_job_fails_after_its_backoff_limit(workload: Workload) -> None:
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "backoffLimit": 0}
    await create(workload.api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    (name,) = await workload.until(1)
    await workload.report(name, "Failed")
    path = workload.api.path("jobs", "job", group="batch/v1")
    failed = await workload.api.until_that(path, lambda found: "Failed" in conditions_of(found))
    assert failed["status"]["failed"] == 1
    (condition,) = [one for one in failed["status"]["conditions"] if one["type"] == "Failed"]
    assert condition["reason"] == "BackoffLimitExceeded"


async def test_a_job_whose_pods_are_refused_has_an_event_that_says_why(workload: Workload) -> None:
    spec = {"template": template({"test": "x"}, restartPolicy="Never", priorityClassName="urgent")}
    await create(workload.api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    found = await workload.api.until_that(workload.api.path("events", group="v1"), lambda one: one["items"])
    event = found["items"][0]
    assert (event["reason"], event["type"], event["involvedObject"]["kind"]) == ("FailedCreate", "Warning", "Job")
    cause = 'pods "job-" is forbidden: no PriorityClass with name urgent was found'
    assert event["message"] == f"Error creating: {cause}"
    assert not await workload.pods()


async def test_a_stateful_set_creates_its_pods_in_order(workload: Workload) -> None:
    spec = {
        "serviceName": "s",
        "replicas": 2,
        "selector": {"matchLabels": {"test": "x"}},
        "template": template({"test": "x"}),
    }
    await create(workload.api, "statefulsets", "apps/v1", {"metadata": {"name": "set"}, "spec": spec})
    pods = await workload.until(1)
    assert list(pods) == ["set-0"]
    assert (pods["set-0"]["spec"]["hostname"], pods["set-0"]["spec"]["subdomain"]) == ("set-0", "s")
    assert pods["set-0"]["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "set-0"
    await workload.report("set-0", "Running", ready=True)
    assert list(await workload.until(2)) == ["set-0", "set-1"]
    await workload.report("set-1", "Running", ready=True)
    path = workload.api.path("statefulsets", "set", group="apps/v1")
    await workload.api.until_that(path, lambda found: found["status"].get("readyReplicas") == 2)
    await workload.api.request("PATCH", path, {"spec": {"replicas": 1}}, MERGE_PATCH)
    assert list(await workload.until(1)) == ["set-0"]


async def test_a_parallel_stateful_set_creates_all_pods_at_once_and_replaces_them(workload: Workload) -> None:
    spec = {
        "serviceName": "s",
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"test": "x"}},
        "template": template({"test": "x"}),
    }
    await create(workload.api, "statefulsets", "apps/v1", {"metadata": {"name": "set"}, "spec": spec})
    pods = await workload.until(3)
    assert list(pods) == ["set-0", "set-1", "set-2"]
    path = workload.api.path("pods", "set-1", group="v1")
    await workload.api.request("DELETE", path)
    uid = pods["set-1"]["metadata"]["uid"]
    await workload.api.until_that(path, lambda found: found["metadata"]["uid"] != uid)
    await workload.api.request("DELETE", workload.api.path("statefulsets", "set", group="apps/v1"))
    await workload.until(0)


async def test_a_cluster_role_with_a_label_is_added_to_view_edit_and_admin(cluster_api: Api) -> None:
    api, roles = cluster_api, "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    group = f"{api.namespace}.example"
    rule = {"apiGroups": [group], "resources": ["widgets"], "verbs": ["get", "list"]}
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}

    async def has_rule(name: str, *, expected: bool) -> None:
        await api.until_that(f"{roles}/{name}", lambda role: (rule in (role["rules"] or [])) is expected)

    body = {"metadata": {"name": api.namespace, "labels": labels}, "rules": [rule]}
    assert (await api.request("POST", roles, body))[0] == 201
    for name in ("view", "edit", "admin"):
        await has_rule(name, expected=True)
    await api.request("DELETE", f"{roles}/{api.namespace}")
    for name in ("view", "edit", "admin"):
        await has_rule(name, expected=False)


@pytest.mark.parametrize(
    ("name", "allowed", "forbidden"),
    [
        ("view", [("get", "", "pods"), ("list", "resource.k8s.io", "resourceclaims")], [("get", "", "secrets")]),
        ("edit", [("create", "", "pods"), ("get", "", "secrets"), ("patch", "batch", "jobs")], []),
        ("admin", [("create", "rbac.authorization.k8s.io", "roles")], [("get", "", "nodes")]),
    ],
)
async def test_what_the_roles_of_users_allow(
    cluster_api: Api, name: str, allowed: list[tuple[str, str, str]], forbidden: list[tuple[str, str, str]]
) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"

    def allows(role: Any, verb: str, group: str, resource: str) -> bool:
        return any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
            for rule in role["rules"] or ()
        )

    role = await cluster_api.until_that(path, lambda role: all(allows(role, *one) for one in allowed))
    assert not any(allows(role, *one) for one in forbidden)


async def test_a_job_without_completions_ends_with_the_first_success(workload: Workload) -> None:
    api, path = workload.api, workload.api.path("jobs", "job", group="batch/v1")
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "parallelism": 2}
    await create(api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    first, second = await workload.until(2)
    await workload.report(first, "Succeeded")
    await api.until_that(path, lambda found: found["status"].get("succeeded") == 1)
    await workload.report(second, "Succeeded")
    done = await api.until_that(path, lambda found: "Complete" in conditions_of(found))
    assert done["status"]["succeeded"] == 2
    assert len(await workload.pods()) == 2


async def test_a_job_counts_pods_that_are_deleted_afterwards(workload: Workload) -> None:
    api, path = workload.api, workload.api.path("jobs", "job", group="batch/v1")
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "completions": 2}
    await create(api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    (first,) = await workload.until(1)
    await workload.report(first, "Succeeded")
    await api.until_that(path, lambda found: found["status"].get("succeeded") == 1)
    pods = await workload.until(2)
    await api.request("DELETE", api.path("pods", first, group="v1"))
    (second,) = set(pods) - {first}
    await workload.until(1)
    await workload.report(second, "Succeeded")
    done = await api.until_that(path, lambda found: "Complete" in conditions_of(found))
    assert done["status"]["succeeded"] == 2


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_pods_of_a_job_that_is_deleted_go_with_it(workload: Workload, policy: str) -> None:
    api = workload.api
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "parallelism": 2}
    await create(api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    await workload.until(2)
    path = api.path("jobs", "job", group="batch/v1")
    await api.request("DELETE", path, {"propagationPolicy": policy})
    await workload.until(0)
    await api.until(path, 404)


async def test_a_job_can_be_suspended_until_it_is_wanted(workload: Workload) -> None:
    api, path = workload.api, workload.api.path("jobs", "job", group="batch/v1")
    spec = {"template": template({"test": "x"}, restartPolicy="Never"), "suspend": True}
    await create(api, "jobs", "batch/v1", {"metadata": {"name": "job"}, "spec": spec})
    suspended = await api.until_that(path, lambda found: "Suspended" in conditions_of(found))
    assert "startTime" not in suspended["status"]
    (condition,) = suspended["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("JobSuspended", "Job suspended")
    assert not await workload.pods()
    await api.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH)
    (name,) = await workload.until(1)
    resumed = await api.until_that(path, lambda found: "Suspended" not in conditions_of(found))
    assert resumed["status"]["startTime"]
    (condition,) = resumed["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "JobResumed")
    await workload.report(name, "Succeeded")
    done = await api.until_that(path, lambda found: "Complete" in conditions_of(found))
    assert [one["type"] for one in done["status"]["conditions"]] == ["Suspended", "SuccessCriteriaMet", "Complete"]


@pytest.mark.parametrize(("kind", "follow"), [(JOBS, follow_jobs), (STATEFUL_SETS, follow_stateful_sets)])
def test_a_malformed_workload_has_an_event_and_does_not_stop_others(
    kind: Kind, follow: Callable[[Objects], None]
) -> None:
    objects = embedded_server.Api().objects
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": {"surprise": True}}
    metadata = {"name": "a-malformed-one", "namespace": "default", "uid": "1"}
    objects.storage.put(kind, Key("default", metadata["name"]), {**body, "metadata": metadata})
    spec: dict[str, Any] = {
        "template": template({"test": "x"}, restartPolicy="Never" if kind is JOBS else "Always")
    }
    if kind is STATEFUL_SETS:
        spec = {**spec, "serviceName": "s", "selector": {"matchLabels": {"test": "x"}}}
    objects.create(kind, "default", {"metadata": {"name": "right"}, "spec": spec}, "test")
    follow(objects)
    assert len(objects.storage.all(PODS, "default")) == 1
    ((_, event),) = objects.storage.all(EVENTS, "default")
    assert (event.document["regarding"]["name"], event.document["reason"]) == ("a-malformed-one", "FailedSync")
