"""Built-in types: defaults, unknown fields, strategic merge patches, and what cannot be changed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.sandbox.embedded.conftest import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api


def pod(name: str = "x", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/app:1", "env": [{"name": "A", "value": "1"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


async def create_account(server: Api) -> None:
    """A real API server without a controller manager does not have it, and wants it for every pod."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await server.request("POST", server.path("serviceaccounts", group="v1"), account)


async def create_pod(server: Api, **spec: Any) -> Any:
    await create_account(server)
    spec = {"automountServiceAccountToken": False, **spec}
    code, created = await server.request("POST", server.path("pods", group="v1"), pod(**spec))
    assert code == 201, created
    return created


async def test_a_pod_gets_its_defaults(server: Api) -> None:
    created = await create_pod(server)
    spec, (container,) = created["spec"], created["spec"]["containers"]
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert (spec["schedulerName"], spec["serviceAccountName"]) == ("default-scheduler", "default")
    assert (spec["dnsPolicy"], spec["priority"], spec["enableServiceLinks"]) == ("ClusterFirst", 0, True)
    assert container["imagePullPolicy"] == "IfNotPresent"
    tolerated = {(one["key"], one["effect"], one["tolerationSeconds"]) for one in spec["tolerations"]}
    assert tolerated == {
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    }


async def test_keys_of_labels_become_part_of_selectors(server: Api) -> None:
    """Only those of labels that the pod has."""
    await create_account(server)
    given = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"job": "a"}}}
    keys = {"matchLabelKeys": ["group", "other"]}
    apart = {**given, **keys, "mismatchLabelKeys": ["team"]}
    preferred = [{"weight": 1, "podAffinityTerm": {**given, **keys}}]
    affinity = {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
    spread = [{**given, **keys, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    body = pod(affinity=affinity, topologySpreadConstraints=spread, automountServiceAccountToken=False)
    body["metadata"]["labels"] = {"group": "1", "team": "b"}
    code, created = await server.request("POST", server.path("pods", group="v1"), body)
    assert code == 201, created
    same = {"key": "group", "operator": "In", "values": ["1"]}
    different = {"key": "team", "operator": "NotIn", "values": ["b"]}
    found = created["spec"]["affinity"]
    (term,) = found["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"] == {"matchLabels": {"job": "a"}, "matchExpressions": [same, different]}
    (term,) = found["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchExpressions"] == [same]
    (constraint,) = created["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchExpressions"] == [same]
    patch = {"metadata": {"annotations": {"a": "b"}}}
    code, _ = await server.request("PATCH", server.path("pods", "x", group="v1"), patch, MERGE_PATCH)
    assert code == 200


async def test_limits_are_requested_and_quantities_are_strings(server: Api) -> None:
    container = {"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"cpu": 1}}}
    created = await create_pod(server, containers=[container])
    resources = created["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "4"}
    assert resources["requests"] == {"cpu": "1", "nvidia.com/gpu": "4"}


@pytest.mark.parametrize("amount", ["four", "4 Gi", "4GiB", "NaN", "1_0"])
async def test_a_wrong_quantity_is_refused(server: Api, amount: str) -> None:
    await create_account(server)
    container = {"name": "a", "image": "b", "resources": {"requests": {"cpu": amount}}}
    code, status = await server.request("POST", server.path("pods", group="v1"), pod(containers=[container]))
    assert code == 400
    assert "quantities must match the regular expression" in status["message"]


async def test_a_wrong_quantity_of_a_node_is_refused(server: Api) -> None:
    node = {"metadata": {"name": f"{server.namespace}-node"}, "status": {"allocatable": {"cpu": "eight"}}}
    code, status = await server.request("POST", "/api/v1/nodes", node)
    assert (code, "quantities must match" in status["message"]) == (400, True)


@pytest.mark.parametrize("amount", ["4", "0.5", "500m", "100u", "1n", "2k", "1.5Gi", "1E", "1e3"])
async def test_quantities_have_suffixes_and_exponents(server: Api, amount: str) -> None:
    container = {"name": "a", "image": "b", "resources": {"requests": {"memory": amount}}}
    created = await create_pod(server, containers=[container])
    assert "memory" in created["spec"]["containers"][0]["resources"]["requests"]


async def test_a_pod_needs_containers(server: Api) -> None:
    await create_account(server)
    code, status = await server.request("POST", server.path("pods", group="v1"), pod(containers=[]))
    assert (code, status["reason"]) == (422, "Invalid")
    assert "spec.containers: Required value" in status["message"]


async def test_a_value_of_another_type_is_a_bad_request(server: Api) -> None:
    code, status = await server.request("POST", server.path("pods", group="v1"), pod(containers="none"))
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_unknown_fields_of_a_built_in_type_are_dropped_or_refused(server: Api) -> None:
    created = await create_pod(server, restartPolicies="Never")
    assert "restartPolicies" not in created["spec"]
    path = server.path("configmaps", group="v1")
    body = {"metadata": {"name": "x"}, "dta": {}}
    code, status = await server.request("POST", path, body, fieldValidation="Strict")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "dta"' in status["message"]


async def test_a_name_is_checked(server: Api) -> None:
    body = {"metadata": {"name": "Not_Good"}}
    code, status = await server.request("POST", server.path("configmaps", group="v1"), body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert "metadata.name: Invalid value" in status["message"]


async def test_the_spec_of_a_pod_is_mostly_immutable(server: Api) -> None:
    await create_pod(server)
    path = server.path("pods", "x", group="v1")
    code, status = await server.request("PATCH", path, {"spec": {"restartPolicy": "Never"}}, MERGE_PATCH)
    assert (code, status["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in status["message"]
    image = {"spec": {"containers": [{"name": "main", "image": "registry.example/app:2"}]}}
    code, patched = await server.request("PATCH", path, image, STRATEGIC_PATCH)
    assert code == 200
    (container,) = patched["spec"]["containers"]
    assert (container["image"], container["env"]) == ("registry.example/app:2", [{"name": "A", "value": "1"}])


async def test_a_strategic_patch_merges_conditions_by_type(server: Api) -> None:
    await create_pod(server)
    path = server.path("pods", "x", group="v1") + "/status"
    first = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]}}
    await server.request("PATCH", path, first, STRATEGIC_PATCH)
    second = {
        "status": {
            "$setElementOrder/conditions": [{"type": "Other"}, {"type": "Ready"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    }
    _, patched = await server.request("PATCH", path, second, STRATEGIC_PATCH)
    found = [(one["type"], one["status"]) for one in patched["status"]["conditions"]]
    assert found == [("Other", "True"), ("Ready", "True")]
    third = {"status": {"conditions": [{"$patch": "delete", "type": "Other"}]}}
    _, patched = await server.request("PATCH", path, third, STRATEGIC_PATCH)
    assert [one["type"] for one in patched["status"]["conditions"]] == ["Ready"]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/1"]}}, ["x.io/2"]),
        ({"metadata": {"finalizers": ["x.io/3"]}}, ["x.io/1", "x.io/2", "x.io/3"]),
        ({"metadata": {"finalizers": None}}, None),
    ],
    ids=["delete", "add", "all"],
)
async def test_a_strategic_patch_of_a_set(server: Api, patch: dict[str, Any], expected: list[str] | None) -> None:
    body = {"metadata": {"name": "x", "finalizers": ["x.io/1", "x.io/2"]}}
    await server.request("POST", server.path("configmaps", group="v1"), body)
    path = server.path("configmaps", "x", group="v1")
    _, patched = await server.request("PATCH", path, patch, STRATEGIC_PATCH)
    found = patched["metadata"].get("finalizers")
    assert (sorted(found) if found else None) == expected


async def test_a_strategic_patch_replaces_and_deletes_maps(server: Api) -> None:
    body = {"metadata": {"name": "x", "labels": {"a": "1", "b": "2"}}, "data": {"k": "v"}}
    await server.request("POST", server.path("configmaps", group="v1"), body)
    path = server.path("configmaps", "x", group="v1")
    patch = {"metadata": {"labels": {"$patch": "replace", "c": "3"}}, "data": {"$patch": "delete"}}
    _, patched = await server.request("PATCH", path, patch, STRATEGIC_PATCH)
    assert patched["metadata"]["labels"] == {"c": "3"}
    assert "data" not in patched


async def test_an_apply_merges_containers_by_name(server: Api) -> None:
    await create_account(server)
    body = pod(automountServiceAccountToken=False)
    path = server.path("pods", "x", group="v1")
    code, _ = await server.request("PATCH", path, body, APPLY_PATCH, fieldManager="a")
    assert code == 201
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "labels": {"by": "b"}},
        "spec": {"containers": [{"name": "main", "image": "registry.example/app:2"}]},
    }
    code, status = await server.request("PATCH", path, other, APPLY_PATCH, fieldManager="b")
    assert code == 409
    assert 'conflict with "a": .spec.containers[name="main"].image' in status["message"]
    code, forced = await server.request("PATCH", path, other, APPLY_PATCH, fieldManager="b", force="true")
    assert code == 200
    (container,) = forced["spec"]["containers"]
    assert (container["image"], container["env"][0]["value"]) == ("registry.example/app:2", "1")


async def test_a_new_node_is_tainted_and_keeps_its_status(server: Api) -> None:
    name = server.namespace
    body = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "2"}}}
    _, created = await server.request("POST", "/api/v1/nodes", body)
    taints = [(one["key"], one["effect"]) for one in created["spec"]["taints"]]
    assert taints == [("node.kubernetes.io/not-ready", "NoSchedule")]
    assert created["status"]["capacity"] == {"cpu": "2"}
    await server.request("DELETE", f"/api/v1/nodes/{name}")


async def test_a_pod_is_bound_to_a_node_once(server: Api) -> None:
    await create_pod(server)
    path = server.path("pods", "x", group="v1")
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "x"}}
    one, two = ({**binding, "target": {"kind": "Node", "name": node}} for node in ("n1", "n2"))
    code, _ = await server.request("POST", f"{path}/binding", one)
    assert code == 201
    code, status = await server.request("POST", f"{path}/binding", two)
    assert (code, status["reason"]) == (409, "Conflict")
    _, bound = await server.request("GET", path)
    assert bound["spec"]["nodeName"] == "n1"


async def test_a_pod_is_deleted_at_the_end_of_its_grace_period(server: Api) -> None:
    """Another deletion can only shorten it."""
    path = server.path("pods", "x", group="v1")
    await create_pod(server, nodeName="n1")
    for asked, expected in ((30, 30), (10, 10), (20, 10)):
        code, deleted = await server.request("DELETE", path, {"gracePeriodSeconds": asked})
        metadata = deleted["metadata"]
        left = datetime.fromisoformat(metadata["deletionTimestamp"]) - datetime.now(UTC)
        assert (code, metadata["deletionGracePeriodSeconds"]) == (200, expected)
        assert expected - 5 <= left.total_seconds() <= expected
    assert (await server.request("DELETE", path, {"gracePeriodSeconds": 0}))[0] == 200
    assert (await server.request("GET", path))[0] == 404


async def test_events_of_both_versions_are_the_same_objects(server: Api) -> None:
    body = {
        "metadata": {"name": "x"},
        "involvedObject": {
            "apiVersion": "example.com/v1",
            "kind": "Pod",
            "namespace": server.namespace,
            "name": "p",
        },
        "reason": "Tested",
        "message": "a message",
        "type": "Normal",
        "count": 2,
    }
    code, _ = await server.request("POST", server.path("events", group="v1"), body)
    assert code == 201
    _, newer = await server.request("GET", server.path("events", "x", group="events.k8s.io/v1"))
    assert (newer["regarding"]["name"], newer["note"], newer["deprecatedCount"]) == ("p", "a message", 2)
    path = server.path("events", group="v1")
    for selector, count in (
        ("involvedObject.name=p", 1),
        ("involvedObject.name=q", 0),
        ("involvedObject.apiVersion=example.com/v1", 1),
    ):
        _, found = await server.request("GET", path, fieldSelector=selector)
        assert len(found["items"]) == count
    patch = {"count": 3, "message": "another"}
    await server.request("PATCH", server.path("events", "x", group="v1"), patch, MERGE_PATCH)
    _, newer = await server.request("GET", server.path("events", "x", group="events.k8s.io/v1"))
    assert (newer["note"], newer["deprecatedCount"]) == ("another", 3)


async def test_all_objects_of_a_selection_can_be_deleted_at_once(server: Api) -> None:
    for name, team in (("one", "a"), ("two", "a"), ("three", "b")):
        body = {"metadata": {"name": name, "labels": {"team": team}}}
        await server.request("POST", server.path("configmaps", group="v1"), body)
    path = server.path("configmaps", group="v1")
    assert (await server.request("DELETE", path, labelSelector="team=a"))[0] == 200
    _, left = await server.request("GET", path, labelSelector="team")
    assert [one["metadata"]["name"] for one in left["items"]] == ["three"]


async def test_the_text_of_a_secret_is_encoded(server: Api) -> None:
    body = {"metadata": {"name": "x"}, "stringData": {"a": "text"}}
    _, created = await server.request("POST", server.path("secrets", group="v1"), body)
    assert (created["data"], created["type"]) == ({"a": "dGV4dA=="}, "Opaque")
    assert "stringData" not in created
