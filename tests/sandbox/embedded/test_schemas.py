"""Custom resources: unknown fields, defaults, validation, rules, and lists in server-side apply."""

from typing import Any

import pytest

from tests.sandbox.embedded.conftest import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api
from tests.sandbox.embedded.test_objects import NVIDIA, domain

DOMAINS = "computedomains"


async def create(server: Api, **spec: Any) -> tuple[int, Any]:
    body = {**domain(), "spec": spec}
    return await server.request("POST", server.path(DOMAINS, group=NVIDIA), body)


async def test_missing_fields_get_their_defaults(server: Api) -> None:
    code, created = await create(server, channel={"resourceClaimTemplate": {"name": "t"}})
    assert code == 201
    assert created["spec"]["numNodes"] == 0
    assert created["spec"]["channel"]["allocationMode"] == "Single"


async def test_unknown_fields_are_pruned(server: Api) -> None:
    body = {**domain(), "spec": {"numNodes": 0, "surprise": {"a": 1}}, "extra": 1}
    code, created = await server.request("POST", server.path(DOMAINS, group=NVIDIA), body)
    assert code == 201
    assert "surprise" not in created["spec"]
    assert "extra" not in created


async def test_strict_validation_names_unknown_fields(server: Api) -> None:
    body = {**domain(), "spec": {"numNodes": 0, "surprise": 1}}
    path = server.path(DOMAINS, group=NVIDIA)
    code, status = await server.request("POST", path, body, fieldValidation="Strict")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.surprise"' in status["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "field", "message"),
    [
        (
            {"numNodes": -1},
            "FieldValueInvalid",
            "spec.numNodes",
            "Invalid value: -1: spec.numNodes in body should be greater than or equal to 0",
        ),
        (
            {"numNodes": "two"},
            "FieldValueTypeInvalid",
            "spec.numNodes",
            'Invalid value: "string": spec.numNodes in body must be of type integer: "string"',
        ),
        (
            {"channel": {"allocationMode": "Some", "resourceClaimTemplate": {"name": "t"}}},
            "FieldValueNotSupported",
            "spec.channel.allocationMode",
            'Unsupported value: "Some": supported values: "Single", "All"',
        ),
        (
            {"channel": {"resourceClaimTemplate": {}}},
            "FieldValueRequired",
            "spec.channel.resourceClaimTemplate.name",
            "Required value",
        ),
    ],
    ids=["minimum", "type", "enum", "required"],
)
async def test_an_invalid_value_is_reported_with_its_field(
    server: Api, spec: dict[str, Any], reason: str, field: str, message: str
) -> None:
    code, status = await create(server, **spec)
    assert (code, status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('ComputeDomain.resource.nvidia.com "job" is invalid: ')
    assert f"{field}: {message}" in status["message"]
    cause, *unchecked = status["details"]["causes"]
    assert [one["field"] for one in unchecked] == (
        [] if field == "spec.numNodes" and "-1" in message else ["<nil>"]
    )
    assert (cause["reason"], cause["field"], cause["message"]) == (reason, field, message)


async def test_a_rule_compares_with_the_object_before(server: Api) -> None:
    await create(server, numNodes=0, channel={"resourceClaimTemplate": {"name": "t"}})
    path = server.path(DOMAINS, "job", group=NVIDIA)
    code, status = await server.request("PATCH", path, {"spec": {"numNodes": 3}}, MERGE_PATCH)
    assert (code, status["reason"]) == (422, "Invalid")
    assert "the spec of a ComputeDomain is immutable: create another ComputeDomain" in status["message"]
    assert status["details"]["causes"][0]["field"] == "spec"
    same = {"spec": {"numNodes": 0}, "metadata": {"labels": {"a": "b"}}}
    assert (await server.request("PATCH", path, same, MERGE_PATCH))[0] == 200


async def test_every_kind_of_write_is_checked(server: Api) -> None:
    await create(server, numNodes=0)
    path = server.path(DOMAINS, "job", group=NVIDIA)
    _, live = await server.request("GET", path)
    for method, body, content_type in (
        ("PATCH", [{"op": "add", "path": "/spec/numNodes", "value": -1}], JSON_PATCH),
        ("PATCH", {**domain(), "spec": {"numNodes": -1}}, APPLY_PATCH),
        ("PUT", {**live, "spec": {"numNodes": -1}}, "application/json"),
    ):
        query = {"fieldManager": "test", "force": "true"} if content_type == APPLY_PATCH else {}
        code, status = await server.request(method, path, body, content_type, **query)
        assert (code, status["reason"]) == (422, "Invalid"), content_type
    _, after = await server.request("GET", path)
    assert after["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]


async def test_a_strategic_patch_of_a_custom_resource_is_not_supported(server: Api) -> None:
    await create(server, numNodes=0)
    path = server.path(DOMAINS, "job", group=NVIDIA)
    code, status = await server.request("PATCH", path, {"metadata": {}}, STRATEGIC_PATCH)
    assert (code, status["reason"]) == (415, "UnsupportedMediaType")


async def test_an_apply_creates_what_does_not_exist(server: Api) -> None:
    path = server.path(DOMAINS, "job", group=NVIDIA)
    code, created = await server.request("PATCH", path, domain(), APPLY_PATCH, fieldManager="a")
    assert code == 201
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("a", "Apply")
    code, _ = await server.request("PATCH", path, domain(), APPLY_PATCH, fieldManager="a")
    assert code == 200


async def test_managers_of_a_list_with_keys_have_their_own_entries(server: Api) -> None:
    await create(server, numNodes=0)
    path = server.path(DOMAINS, "job", group=NVIDIA)

    async def apply(manager: str, *types: str, status: str = "True") -> tuple[int, Any]:
        conditions = [
            {
                "type": one,
                "status": status,
                "reason": "Test",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for one in types
        ]
        body = {"apiVersion": NVIDIA, "kind": "ComputeDomain", "status": {"conditions": conditions}}
        return await server.request("PATCH", f"{path}/status", body, APPLY_PATCH, fieldManager=manager)

    await apply("a", "One", "Two")
    _, both = await apply("b", "Three")
    assert [one["type"] for one in both["status"]["conditions"]] == ["One", "Two", "Three"]
    code, conflict = await apply("b", "One", "Three", status="False")
    assert code == 409
    assert (
        'conflict with "a" with subresource "status": .status.conditions[type="One"].status' in conflict["message"]
    )
    _, fewer = await apply("a", "Two")
    assert [one["type"] for one in fewer["status"]["conditions"]] == ["Two", "Three"]


async def test_a_crd_is_served_and_withdrawn(server: Api) -> None:
    group = f"{server.namespace}.example.com"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": f"widgets.{group}"}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert (await server.request("POST", crds, crd))[0] == 201
    path = server.path("widgets", group=f"{group}/v1")
    await server.until(path, 200)
    code, _ = await server.request(
        "POST", path, {"metadata": {"name": "x"}, "apiVersion": f"{group}/v1", "kind": "Widget"}
    )
    assert code == 201
    code, _ = await server.request("PATCH", f"{path}/x/status", {"status": {}}, MERGE_PATCH)
    assert code == 404, "it has no status subresource"
    await server.request("DELETE", f"{crds}/widgets.{group}")
    await server.until(path, 404)
