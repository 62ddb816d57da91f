"""Lists, selectors, pages, and watches."""

import asyncio
import json
import random
import ssl
import uuid
from base64 import b64decode
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from imex_dra.base.clock import Clock
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Storage
from imex_sandbox.simulation.network import Link, SimulatedHttp
from tests.sandbox.embedded.conftest import FIXTURES, MERGE_PATCH, SLOW_KUBERNETES, Api, connected
from tests.sandbox.embedded.test_objects import DRA, NVIDIA, lease


async def create(api: Api, *names: str, **labels: str) -> None:
    for name in names:
        await api.request("POST", api.path("leases"), lease(name, labels=labels))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("team=a", ["one"]),
        ("team==a", ["one"]),
        ("team!=a", ["three", "two"]),
        ("team", ["one", "two"]),
        ("!team", ["three"]),
        ("team in (a, b)", ["one", "two"]),
        ("team notin (a)", ["three", "two"]),
        ("team in (a,b),team!=b", ["one"]),
    ],
)
async def test_label_selectors(api: Api, selector: str, expected: list[str]) -> None:
    await create(api, "one", team="a")
    await create(api, "two", team="b")
    await create(api, "three")
    _, found = await api.request("GET", api.path("leases"), labelSelector=selector)
    assert [item["metadata"]["name"] for item in found["items"]] == expected


async def test_a_field_selector_by_name(api: Api) -> None:
    await create(api, "one", "two")
    _, found = await api.request("GET", api.path("leases"), fieldSelector="metadata.name=two")
    assert [item["metadata"]["name"] for item in found["items"]] == ["two"]


async def test_a_malformed_selector_is_a_bad_request(api: Api) -> None:
    code, status = await api.request("GET", api.path("leases"), labelSelector="a=(")
    assert (code, status["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("plural", "group", "field"),
    [
        ("pods", "v1", "spec.nodename"),
        ("pods", "v1", "status.reason"),
        ("pods", "v1", "metadata.uid"),
        ("nodes", "v1", "spec.podCIDR"),
        ("leases", "coordination.k8s.io/v1", "spec.holderIdentity"),
        ("events", "v1", "regarding.name"),
        ("events", "events.k8s.io/v1", "involvedObject.name"),
        ("resourceclaims", DRA, "spec.nodeName"),
        ("computedomains", NVIDIA, "spec.numNodes"),
    ],
)
async def test_a_field_that_cannot_be_selected_by_is_a_bad_request(
    server: Api, plural: str, group: str, field: str
) -> None:
    path = f"/api/v1/{plural}" if plural == "nodes" else server.path(plural, group=group)
    code, status = await server.request("GET", path, fieldSelector=f"{field}=x")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert field in status["message"]
    (event,) = await server.watch(path, 1, fieldSelector=f"{field}=x")
    assert (event["type"], event["object"]["code"]) == ("HTTP", 400)


POD = {
    "restartPolicy": "Never",
    "schedulerName": "none",
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "containers": [{"name": "main", "image": "any"}],
}
INVOLVED = {
    "kind": "Pod",
    "name": "x",
    "uid": "u1",
    "apiVersion": "v1",
    "resourceVersion": "7",
    "fieldPath": "spec",
}


@pytest.mark.parametrize(
    ("plural", "fields", "values"),
    [
        (
            "pods",
            {"spec": {**POD, "nodeName": "n1", "hostNetwork": True}},
            {
                "spec.nodeName": "n1",
                "spec.restartPolicy": "Never",
                "spec.schedulerName": "none",
                "spec.serviceAccountName": "default",
                "spec.hostNetwork": "true",
                "status.phase": "Pending",
                "metadata.namespace": "",
            },
        ),
        ("secrets", {"type": "example.com/x"}, {"type": "example.com/x", "metadata.name": "x"}),
        (
            "services",
            {"spec": {"clusterIP": "None", "ports": [{"port": 80}]}},
            {"spec.clusterIP": "None", "spec.type": "ClusterIP"},
        ),
        (
            "events",
            {"involvedObject": INVOLVED, "reason": "Tested", "type": "Normal", "reportingComponent": "test"},
            {
                **{f"involvedObject.{field}": value for field, value in INVOLVED.items()},
                "reason": "Tested",
                "type": "Normal",
                "reportingComponent": "test",
            },
        ),
    ],
    ids=["pods", "secrets", "services", "events"],
)
async def test_fields_that_can_be_selected_by(
    server: Api, plural: str, fields: dict[str, Any], values: dict[str, str]
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await server.request("POST", server.path("serviceaccounts", group="v1"), account)
    path = server.path(plural, group="v1")
    if plural == "events":
        fields = {**fields, "involvedObject": {**fields["involvedObject"], "namespace": server.namespace}}
    code, created = await server.request("POST", path, {"metadata": {"name": "x"}, **fields})
    assert code == 201, created
    for field, value in values.items():
        value = value or server.namespace
        _, found = await server.request("GET", path, fieldSelector=f"{field}={value}")
        assert [one["metadata"]["name"] for one in found["items"]] == ["x"], field
        _, found = await server.request("GET", path, fieldSelector=f"{field}=other")
        assert found["items"] == [], field


async def test_a_node_is_schedulable_unless_it_says_otherwise(server: Api) -> None:
    for name, spec in (("a", {}), ("b", {"unschedulable": True})):
        body = {
            "metadata": {"name": f"{server.namespace}-{name}", "labels": {"of": server.namespace}},
            "spec": spec,
        }
        await server.request("POST", "/api/v1/nodes", body)
    for value, name in (("false", "a"), ("true", "b")):
        query = {"fieldSelector": f"spec.unschedulable={value}", "labelSelector": f"of={server.namespace}"}
        _, found = await server.request("GET", "/api/v1/nodes", **query)
        assert [one["metadata"]["name"] for one in found["items"]] == [f"{server.namespace}-{name}"]
    for name in ("a", "b"):
        await server.request("DELETE", f"/api/v1/nodes/{server.namespace}-{name}")


async def test_a_name_with_a_colon_can_be_selected(server: Api) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    name = f"{server.namespace}:role"
    await server.request("POST", roles, {"metadata": {"name": name}, "rules": []})
    _, found = await server.request("GET", roles, fieldSelector=f"metadata.name={name}")
    assert [one["metadata"]["name"] for one in found["items"]] == [name]
    (event,) = await server.watch(roles, 1, fieldSelector=f"metadata.name={name}")
    assert event["object"]["metadata"]["name"] == name
    await server.request("DELETE", f"{roles}/{name}")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("spec.containers{main}", "spec.containers{main}"),
        ("a b(c)", "a b(c)"),
        ("a,b=c\\d", r"a\,b\=c\\d"),
    ],
)
async def test_values_of_fields_with_special_characters(server: Api, value: str, written: str) -> None:
    events = server.path("events", group="v1")
    involved = {"namespace": server.namespace, "name": "x", "kind": "Pod", "fieldPath": value}
    body = {"metadata": {"name": "x"}, "involvedObject": involved, "type": "Normal"}
    code, created = await server.request("POST", events, body)
    assert code == 201, created
    _, found = await server.request("GET", events, fieldSelector=f"involvedObject.fieldPath={written}")
    assert [one["metadata"]["name"] for one in found["items"]] == ["x"]
    _, found = await server.request("GET", events, fieldSelector=f"involvedObject.fieldPath!={written}")
    assert found["items"] == []


@pytest.mark.parametrize("selector", [r"reason=a\b", "reason=a=b", "reason"])
async def test_a_malformed_field_selector_is_a_bad_request(server: Api, selector: str) -> None:
    code, status = await server.request("GET", server.path("events", group="v1"), fieldSelector=selector)
    assert (code, status["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("version", ["abc", "-1"])
async def test_a_malformed_version_is_named(server: Api, version: str) -> None:
    message = (
        f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
    )
    code, status = await server.request("GET", server.path("leases"), resourceVersion=version)
    assert (code, message in status["message"]) == (400, True)
    (event,) = await server.watch(server.path("leases"), 1, resourceVersion=version)
    # This is not what one expects of a bad request, but what a real API server answers.
    assert (event["type"], event["object"]["code"]) == ("HTTP", 500)
    assert message in event["object"]["message"]


@pytest.mark.parametrize(
    "query", [{"limit": "abc"}, {"continue": "abc"}, {"continue": "%%%"}, {"watch": "1", "timeoutSeconds": "abc"}]
)
async def test_a_malformed_parameter_is_a_bad_request(api: Api, query: dict[str, str]) -> None:
    code, status = await api.request("GET", api.path("leases"), **query)
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_pages_hold_all_objects_once(api: Api) -> None:
    """Those of the version of the first page, whatever changes meanwhile."""
    names = [f"lease-{number}" for number in range(5)]
    await create(api, *names)
    found: list[str] = []
    query = {"limit": "2"}
    while True:
        _, page = await api.request("GET", api.path("leases"), **query)
        assert len(page["items"]) <= 2
        found += [item["metadata"]["name"] for item in page["items"]]
        # What is written between pages is in none of them, and what is deleted is in all of them.
        await create(api, f"lease-{len(found)}-new")
        await api.request("POST", api.path("resourceclaims", group=DRA), {"metadata": {"name": f"c{len(found)}"}})
        await api.request("DELETE", api.path("leases", names[-1]))
        if not page["metadata"].get("continue"):
            break
        query["continue"] = page["metadata"]["continue"]
    assert found == names


async def test_a_watch_delivers_changes_after_a_version_in_order(api: Api) -> None:
    _, listed = await api.request("GET", api.path("leases"))
    version = listed["metadata"]["resourceVersion"]
    await create(api, "x")
    await api.request("PATCH", api.path("leases", "x"), {"spec": {"holderIdentity": "b"}}, MERGE_PATCH)
    await api.request("DELETE", api.path("leases", "x"))
    events = await api.watch(api.path("leases"), 3, resourceVersion=version)
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[2]["object"]["spec"]["holderIdentity"] == "b"


async def test_a_watch_delivers_changes_that_happen_while_it_is_open(api: Api) -> None:
    _, listed = await api.request("GET", api.path("leases"))
    watching = asyncio.create_task(
        api.watch(api.path("leases"), 1, resourceVersion=listed["metadata"]["resourceVersion"])
    )
    await asyncio.sleep(0)
    await create(api, "x")
    (event,) = await watching
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "x")


async def test_an_object_that_stops_matching_is_deleted_for_the_watch(api: Api) -> None:
    await create(api, "x", team="a")
    _, listed = await api.request("GET", api.path("leases"))
    version = listed["metadata"]["resourceVersion"]
    await api.request("PATCH", api.path("leases", "x"), {"metadata": {"labels": {"team": "b"}}}, MERGE_PATCH)
    await api.request("PATCH", api.path("leases", "x"), {"metadata": {"labels": {"team": "a"}}}, MERGE_PATCH)
    events = await api.watch(api.path("leases"), 2, resourceVersion=version, labelSelector="team=a")
    assert [event["type"] for event in events] == ["DELETED", "ADDED"]


async def test_a_watch_with_initial_events_streams_the_list_and_marks_its_end(api: Api) -> None:
    await create(api, "one", "two")
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    events = await api.watch(api.path("leases"), 3, **query)
    assert sorted(event["object"]["metadata"]["name"] for event in events[:2]) == ["one", "two"]
    assert events[2]["type"] == "BOOKMARK"
    assert events[2]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"


async def test_a_watch_ends_after_its_time(api: Api) -> None:
    _, listed = await api.request("GET", api.path("leases"))
    version = listed["metadata"]["resourceVersion"]
    assert await api.watch(api.path("leases"), 1, resourceVersion=version, timeoutSeconds="1") == []


async def test_what_is_not_served_is_not_found(api: Api) -> None:
    code, _ = await api.request("GET", "/apis/example.com/v1/nothings")
    assert code == 404


async def test_a_watch_from_a_version_that_is_not_kept_ends_with_an_event() -> None:
    """A real API server does the same after a compaction (tests/kube/test_reflector.py)."""
    objects = Objects(Storage(), now=Clock().now, new_uid=lambda: str(uuid.uuid4()))
    api = Api(SimulatedHttp("imex-test", objects, Link(random.Random(), latency=0.0)))
    await api.request("POST", "/api/v1/namespaces", {"metadata": {"name": api.namespace}})
    await create(api, "x")
    objects.storage.compact()
    await create(api, "y")
    (event,) = await api.watch(api.path("leases"), 1, resourceVersion="1")
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


@pytest.mark.parametrize("name", [SLOW_KUBERNETES, "embedded"])
async def test_a_watch_over_http_1_0_ends_with_its_connection(request: pytest.FixtureRequest, name: str) -> None:
    """As a proxy asks that does not reuse connections; the response has no chunks then."""
    async with connected(request, name) as server:
        await create(server, "one")
        kubeconfig = yaml.safe_load(request.getfixturevalue(FIXTURES[name]).kubeconfig().read_text())
        cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
        address = urlsplit(cluster["server"])
        trust = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
        reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=trust)
        path = f"{server.path('leases')}?watch=1&timeoutSeconds=1"
        writer.write(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {user['token']}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b" 200 " in head.splitlines()[0]
    assert b"chunked" not in head.lower()
    assert [json.loads(line)["object"]["metadata"]["name"] for line in body.splitlines()] == ["one"]
