"""Create, read, change and delete."""

import uuid
from typing import Any

import pytest

from tests.sandbox.embedded.conftest import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, Api

DRA = "resource.k8s.io/v1"
NVIDIA = "resource.nvidia.com/v1beta1"


def lease(name: str = "x", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, **metadata},
        "spec": {"holderIdentity": "a"},
    }


def domain(name: str = "job", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": NVIDIA,
        "kind": "ComputeDomain",
        "metadata": {"name": name, **metadata},
        "spec": {"numNodes": 0},
    }


async def test_a_created_object_has_the_metadata_of_the_api(api: Api) -> None:
    code, created = await api.request("POST", api.path("leases"), lease(labels={"a": "b"}))
    assert code == 201
    metadata = created["metadata"]
    assert (metadata["name"], metadata["namespace"], metadata["labels"]) == ("x", api.namespace, {"a": "b"})
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0
    assert (created["kind"], created["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")


async def test_a_generated_name_begins_with_its_prefix(api: Api) -> None:
    body = lease()
    body["metadata"] = {"generateName": "lease-"}
    _, created = await api.request("POST", api.path("leases"), body)
    name = created["metadata"]["name"]
    assert name.startswith("lease-")
    assert len(name) == len("lease-") + 5


async def test_an_object_without_a_name_is_invalid(api: Api) -> None:
    body = lease()
    body["metadata"] = {}
    code, status = await api.request("POST", api.path("leases"), body)
    assert (code, status["reason"]) == (422, "Invalid")


async def test_a_second_object_of_the_same_name_already_exists(api: Api) -> None:
    await api.request("POST", api.path("leases"), lease())
    code, status = await api.request("POST", api.path("leases"), lease())
    assert (code, status["kind"], status["reason"]) == (409, "Status", "AlreadyExists")


async def test_a_namespace_must_exist(api: Api) -> None:
    code, status = await api.request("POST", "/apis/coordination.k8s.io/v1/namespaces/no-such/leases", lease())
    assert (code, status["reason"]) == (404, "NotFound")


async def test_a_missing_object_is_not_found(api: Api) -> None:
    code, status = await api.request("GET", api.path("leases", "missing"))
    assert (code, status["reason"]) == (404, "NotFound")
    assert status["message"] == 'leases.coordination.k8s.io "missing" not found'


async def test_a_merge_patch_changes_and_removes_fields(api: Api) -> None:
    await api.request("POST", api.path("leases"), lease(labels={"a": "1", "b": "2"}))
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}, "spec": {"leaseDurationSeconds": 5}}
    code, patched = await api.request("PATCH", api.path("leases", "x"), patch, MERGE_PATCH)
    assert code == 200
    assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert patched["spec"] == {"holderIdentity": "a", "leaseDurationSeconds": 5}


async def test_a_patch_that_changes_nothing_makes_no_new_version(api: Api) -> None:
    _, created = await api.request("POST", api.path("leases"), lease())
    _, patched = await api.request(
        "PATCH", api.path("leases", "x"), {"spec": {"holderIdentity": "a"}}, MERGE_PATCH
    )
    assert patched["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_a_patch_with_another_resource_version_conflicts(api: Api) -> None:
    _, created = await api.request("POST", api.path("leases"), lease())
    patch = {
        "metadata": {"resourceVersion": created["metadata"]["resourceVersion"]},
        "spec": {"holderIdentity": "b"},
    }
    assert (await api.request("PATCH", api.path("leases", "x"), patch, MERGE_PATCH))[0] == 200
    patch["spec"]["holderIdentity"] = "c"
    code, status = await api.request("PATCH", api.path("leases", "x"), patch, MERGE_PATCH)
    assert (code, status["reason"]) == (409, "Conflict")
    assert "the object has been modified" in status["message"]


async def test_a_json_patch_adds_moves_and_removes(api: Api) -> None:
    await api.request("POST", api.path("leases"), lease(labels={"a/b": "1", "c": "2"}))
    operations = [
        {"op": "add", "path": "/spec/holderIdentity", "value": "b"},
        {"op": "remove", "path": "/metadata/labels/a~1b"},
        {"op": "add", "path": "/metadata/finalizers", "value": ["x.io/1", "x.io/2"]},
        {"op": "move", "from": "/metadata/finalizers/1", "path": "/metadata/finalizers/0"},
    ]
    code, patched = await api.request("PATCH", api.path("leases", "x"), operations, JSON_PATCH)
    assert code == 200
    assert patched["spec"]["holderIdentity"] == "b"
    assert patched["metadata"]["labels"] == {"c": "2"}
    assert patched["metadata"]["finalizers"] == ["x.io/2", "x.io/1"]


@pytest.mark.parametrize(
    "failing",
    [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "remove", "path": "/metadata/labels"},
        {"op": "add", "path": "/metadata/labels/a", "value": "1"},
        {"op": "move", "from": "/metadata/finalizers/0", "path": "/metadata/finalizers/1"},
    ],
    ids=["a failed test", "a missing field", "a missing parent", "a missing entry"],
)
async def test_a_json_patch_that_fails_changes_nothing_and_does_not_say_why(
    api: Api, failing: dict[str, str]
) -> None:
    await api.request("POST", api.path("leases"), lease())
    operations = [{"op": "add", "path": "/spec/holderIdentity", "value": "b"}, failing]
    code, status = await api.request("PATCH", api.path("leases", "x"), operations, JSON_PATCH)
    assert (code, status["reason"]) == (422, "Invalid")
    assert status["message"] == "the server rejected our request due to an error in our request"
    _, live = await api.request("GET", api.path("leases", "x"))
    assert live["spec"]["holderIdentity"] == "a"


async def test_an_update_replaces_the_object(api: Api) -> None:
    _, created = await api.request("POST", api.path("leases"), lease(labels={"a": "1"}))
    body = lease(resourceVersion=created["metadata"]["resourceVersion"])
    body["spec"] = {"holderIdentity": "b"}
    code, updated = await api.request("PUT", api.path("leases", "x"), body)
    assert code == 200
    assert updated["metadata"].get("labels") is None
    assert updated["spec"] == {"holderIdentity": "b"}
    assert updated["metadata"]["uid"] == created["metadata"]["uid"]


async def test_the_status_is_changed_only_through_its_subresource(api: Api) -> None:
    path = api.path("computedomains", "job", group=NVIDIA)
    await api.request(
        "POST", api.path("computedomains", group=NVIDIA), {**domain(), "status": {"status": "Ready"}}
    )
    _, created = await api.request("GET", path)
    assert created.get("status", {}).get("status") != "Ready"
    await api.request("PATCH", path, {"status": {"status": "Ready"}}, MERGE_PATCH)
    _, ignored = await api.request("GET", path)
    assert ignored.get("status", {}).get("status") != "Ready"
    patch = {"metadata": {"labels": {"a": "b"}}, "status": {"status": "Ready", "nodes": []}}
    _, patched = await api.request("PATCH", f"{path}/status", patch, MERGE_PATCH)
    assert patched["status"]["status"] == "Ready"
    assert "labels" not in patched["metadata"]


async def test_the_generation_counts_changes_of_the_spec_only(api: Api) -> None:
    path = api.path("computedomains", "job", group=NVIDIA)
    _, created = await api.request("POST", api.path("computedomains", group=NVIDIA), domain())
    assert created["metadata"]["generation"] == 1
    _, labeled = await api.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH)
    _, written = await api.request("PATCH", f"{path}/status", {"status": {"status": "Ready"}}, MERGE_PATCH)
    assert (labeled["metadata"]["generation"], written["metadata"]["generation"]) == (1, 1)


async def test_a_deleted_object_is_gone(api: Api) -> None:
    await api.request("POST", api.path("leases"), lease())
    assert (await api.request("DELETE", api.path("leases", "x")))[0] == 200
    assert (await api.request("GET", api.path("leases", "x")))[0] == 404
    assert (await api.request("DELETE", api.path("leases", "x")))[0] == 404


async def test_a_deletion_with_another_uid_conflicts(api: Api) -> None:
    await api.request("POST", api.path("leases"), lease())
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": str(uuid.uuid4())}}
    code, status = await api.request("DELETE", api.path("leases", "x"), options)
    assert (code, status["reason"]) == (409, "Conflict")


async def test_an_object_with_a_finalizer_waits_for_its_removal(api: Api) -> None:
    path = api.path("computedomains", "job", group=NVIDIA)
    finalizers = ["example.com/a"]
    await api.request("POST", api.path("computedomains", group=NVIDIA), domain(finalizers=finalizers))
    await api.request("DELETE", path)
    _, deleting = await api.request("GET", path)
    assert deleting["metadata"]["deletionTimestamp"]
    assert deleting["metadata"]["generation"] == 2
    await api.request("DELETE", path)
    _, again = await api.request("GET", path)
    assert again["metadata"]["resourceVersion"] == deleting["metadata"]["resourceVersion"]
    await api.request("PATCH", path, {"metadata": {"finalizers": []}}, MERGE_PATCH)
    assert (await api.request("GET", path))[0] == 404


@pytest.mark.parametrize("name", ["x", ""], ids=["one", "all"])
async def test_a_dry_run_in_the_options_of_a_deletion_deletes_nothing(api: Api, name: str) -> None:
    await api.request("POST", api.path("leases"), lease())
    code, status = await api.request("DELETE", api.path("leases", name), {"dryRun": ["All"]})
    assert code == 200 or (code, status["message"]) == (501, "a dry run is not supported by the embedded API")
    assert (await api.request("GET", api.path("leases", "x")))[0] == 200


@pytest.mark.parametrize(
    "options", [{"orphanDependents": True}, {"propagationPolicy": "Orphan"}], ids=["old", "new"]
)
async def test_a_deletion_that_leaves_dependents_is_done_or_not_supported(
    api: Api, options: dict[str, Any]
) -> None:
    await api.request("POST", api.path("leases"), lease())
    code, _ = await api.request("DELETE", api.path("leases", "x"), options)
    _, found = await api.request("GET", api.path("leases", "x"))
    expected = (200, ["orphan"]) if code == 200 else (501, None)
    assert (code, found["metadata"].get("finalizers")) == expected


async def test_a_recreated_object_has_another_uid(api: Api) -> None:
    _, first = await api.request("POST", api.path("leases"), lease())
    await api.request("DELETE", api.path("leases", "x"))
    _, second = await api.request("POST", api.path("leases"), lease())
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_an_apply_without_force_yields_to_another_manager_and_names_it(api: Api) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"clique": "theirs"}}}
    await api.request("POST", "/api/v1/nodes", node, fieldManager="feature-discovery")
    ours = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"clique": "ours"}}}
    query = {"fieldManager": "imex-controller"}
    code, status = await api.request("PATCH", f"/api/v1/nodes/{name}", ours, APPLY_PATCH, **query)
    assert (code, status["reason"]) == (409, "Conflict")
    assert 'conflict with "feature-discovery"' in status["message"]
    code, forced = await api.request("PATCH", f"/api/v1/nodes/{name}", ours, APPLY_PATCH, **query, force="true")
    assert (code, forced["metadata"]["labels"]["clique"]) == (200, "ours")
    code, status = await api.request(
        "PATCH", f"/api/v1/nodes/{name}", node, APPLY_PATCH, fieldManager="feature-discovery"
    )
    assert 'conflict with "imex-controller"' in status["message"]


async def test_applying_fewer_fields_removes_those_that_nobody_else_manages(api: Api) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    await api.request(
        "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"a": "1"}}}, fieldManager="x"
    )
    labels = {"b": "2", "c": "3"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    await api.request("PATCH", f"/api/v1/nodes/{name}", body, APPLY_PATCH, fieldManager="y")
    del labels["c"]
    _, applied = await api.request("PATCH", f"/api/v1/nodes/{name}", body, APPLY_PATCH, fieldManager="y")
    found = {key: value for key, value in applied["metadata"]["labels"].items() if "/" not in key}
    assert found == {"a": "1", "b": "2"}
