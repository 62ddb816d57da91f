"""Bodies and patches that are no objects: the codes of a real API server first, then those of the embedded one."""

from typing import Any

import pytest

from tests.sandbox.embedded.conftest import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api
from tests.sandbox.embedded.test_builtin import create_account
from tests.sandbox.embedded.test_objects import domain
from tests.sandbox.embedded.test_validation import APPS, BATCH, RESOURCE

CRD: dict[str, Any] = {"metadata": {"name": "as.example.com"}}
VERSION = {"name": "v1", "served": True, "storage": True}
A = {"group": "example.com", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"}}
COMPUTE_DOMAINS = domain()["apiVersion"]


@pytest.mark.parametrize(
    ("plural", "group", "body", "code"),
    [
        ("pods", "v1", {"metadata": {"name": "x"}}, 422),
        ("resourceclaimtemplates", RESOURCE, {"metadata": {"name": "x"}}, 201),
        ("resourceclaimtemplates", RESOURCE, {"metadata": {"name": "x"}, "spec": {}}, 201),
        ("jobs", BATCH, {"metadata": {"name": "x"}}, 422),
        ("jobs", BATCH, {"metadata": {"name": "x"}, "spec": {}}, 422),
        ("statefulsets", APPS, {"metadata": {"name": "x"}}, 422),
        ("customresourcedefinitions", "", CRD, 422),
        ("customresourcedefinitions", "", {**CRD, "spec": {}}, 422),
        ("customresourcedefinitions", "", {**CRD, "spec": "x"}, 400),
        ("customresourcedefinitions", "", {**CRD, "spec": {"versions": [VERSION]}}, 422),
        ("customresourcedefinitions", "", {**CRD, "spec": {**A, "versions": [VERSION]}}, 422),
        ("customresourcedefinitions", "", {**CRD, "spec": A}, 422),
        ("pods", "v1", {"metadata": {"name": "x"}, "spec": {"containers": {"name": "a"}}}, 400),
        ("configmaps", "v1", [1], 400),
        ("configmaps", "v1", {"metadata": "x"}, 400),
        ("configmaps", "v1", {"metadata": ["x"]}, 400),
        ("configmaps", "v1", {"metadata": None}, 422),
        ("configmaps", "v1", {"metadata": {"name": 1}}, 400),
        ("configmaps", "v1", {"metadata": {"name": "x", "namespace": 1}}, 400),
        ("configmaps", "v1", {"metadata": {"name": "x", "namespace": ""}}, 201),
        ("configmaps", "v1", {"metadata": {"name": "x", "namespace": None}}, 201),
        ("configmaps", "v1", {"metadata": {"name": "x", "labels": ["x"]}}, 400),
        ("configmaps", "v1", {"metadata": {"name": "x", "labels": {"a": 1}}}, 400),
        ("configmaps", "v1", {"metadata": {"name": "x", "annotations": {"a": 1}}}, 400),
        ("configmaps", "v1", {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}, 400),
        ("configmaps", "v1", {"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"name": "x"}}, 400),
        ("configmaps", "v1", {"kind": 1, "metadata": {"name": "x"}}, 400),
        ("configmaps", "v1", {"kind": "ConfigMap", "metadata": {"name": "x"}}, 201),
        ("computedomains", COMPUTE_DOMAINS, domain(annotations={"a": 1}), 400),
        ("computedomains", COMPUTE_DOMAINS, domain(labels=["x"]), 400),
        ("computedomains", COMPUTE_DOMAINS, domain(finalizers="x"), 400),
        ("computedomains", COMPUTE_DOMAINS, domain(ownerReferences=["x"]), 400),
        ("computedomains", COMPUTE_DOMAINS, domain(ownerReferences=[{}]), 422),
        ("computedomains", COMPUTE_DOMAINS, domain(foo=1), 201),
        ("computedomains", COMPUTE_DOMAINS, {**domain(), "kind": "Secret"}, 422),
    ],
    ids=lambda value: "" if value == "" else None,
)
async def test_malformed_bodies(server: Api, plural: str, group: str, body: Any, code: int) -> None:
    path = server.path(plural, group=group) if group else f"/apis/apiextensions.k8s.io/v1/{plural}"
    await create_account(server)
    answered, status = await server.request("POST", path, body)
    assert answered == code, status


@pytest.mark.parametrize(
    ("patch", "content_type", "code"),
    [
        ({"metadata": {"labels": ["x"]}}, MERGE_PATCH, 422),
        ({"metadata": "x"}, MERGE_PATCH, 422),
        ({"metadata": None}, MERGE_PATCH, 400),
        ([], MERGE_PATCH, 400),
        ({"metadata": {"labels": ["x"]}}, STRATEGIC_PATCH, 422),
        ({"metadata": "x"}, STRATEGIC_PATCH, 422),
        (None, APPLY_PATCH, 400),
        (["a"], APPLY_PATCH, 400),
        ("abc", APPLY_PATCH, 400),
        ({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}, APPLY_PATCH, 400),
    ],
    ids=lambda value: None,
)
async def test_malformed_patches(server: Api, patch: Any, content_type: str, code: int) -> None:
    path = server.path("configmaps", group="v1")
    await server.request("POST", path, {"metadata": {"name": "x"}})
    query = {"fieldManager": "test"} if content_type == APPLY_PATCH else {}
    answered, status = await server.request("PATCH", f"{path}/x", patch, content_type, **query)
    assert (answered, status["kind"]) == (code, "Status"), status


async def test_unknown_metadata_of_a_custom_resource_is_dropped(server: Api) -> None:
    path = server.path("computedomains", group=COMPUTE_DOMAINS)
    code, status = await server.request("POST", path, domain(foo=1), fieldValidation="Strict")
    assert (code, 'unknown field "metadata.foo"' in status["message"]) == (400, True)
    code, created = await server.request("POST", path, domain(foo=1, annotations={"Example.com/A": "x"}))
    assert (code, "foo" in created["metadata"]) == (201, False)


async def test_an_unknown_field_may_have_any_name(server: Api) -> None:
    body = {"metadata": {"name": "x"}, 'a\nb\u00e9"\\': 1}
    code, created = await server.request("POST", server.path("configmaps", group="v1"), body)
    assert (code, created["metadata"]["name"]) == (201, "x")


async def test_a_body_that_is_too_large_is_refused(server: Api) -> None:
    body = {"metadata": {"name": "x"}, "data": {"a": "x" * (3 * 1024 * 1024)}}
    code, status = await server.request("POST", server.path("configmaps", group="v1"), body)
    assert (code, status["reason"]) == (413, "RequestEntityTooLarge")
    assert status["message"] == "Request entity too large: limit is 3145728"
