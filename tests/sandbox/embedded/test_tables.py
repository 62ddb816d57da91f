"""Tables, as `kubectl get` asks for them, and discovery."""

from typing import Any

import pytest

from imex_sandbox.embedded.tables import human_duration
from imex_sandbox.kubernetes import versions
from tests.sandbox.embedded.conftest import MERGE_PATCH, TABLE, Api, connected
from tests.sandbox.embedded.test_builtin import create_pod
from tests.sandbox.embedded.test_objects import NVIDIA, domain

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVICE_ACCOUNTS = "/api/v1/serviceaccounts"
OTHER_COLUMNS = {"1.34": [SERVICE_ACCOUNTS], "1.37": [CRDS]}
"""Of versions other than that whose columns the embedded API server has."""
KINDS = [
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/services",
    SERVICE_ACCOUNTS,
    "/api/v1/events",
    "/apis/events.k8s.io/v1/events",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/jobs",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    CRDS,
    "/apis/resource.nvidia.com/v1beta1/computedomains",
    "/apis/imex-dra.io/v1alpha1/nvlinknodes",
]


async def columns(api: Api) -> dict[str, list[tuple[str, str, str, int]]]:
    found = {}
    for path in KINDS:
        code, table = await api.request("GET", path, accept=TABLE)
        assert (code, table["kind"]) == (200, "Table")
        found[path] = [
            (one["name"], one["type"], one.get("format", ""), one["priority"])
            for one in table["columnDefinitions"]
        ]
    return found


@pytest.mark.kube
@pytest.mark.slow
async def test_columns_are_those_of_a_real_api_server(request: pytest.FixtureRequest) -> None:
    async with connected(request, "kubernetes") as real, connected(request, "embedded") as embedded:
        ours, theirs = await columns(embedded), await columns(real)
    for path in OTHER_COLUMNS.get(versions.selected(), ()):
        assert ours.pop(path) != theirs.pop(path)
    assert ours == theirs


async def row(server: Api, path: str) -> list[Any]:
    _, table = await server.request("GET", path, accept=TABLE)
    (found,) = table["rows"]
    assert found["object"]["kind"] == "PartialObjectMetadata"
    cells: list[Any] = found["cells"]
    return cells


async def test_the_row_of_a_pod_follows_its_containers(server: Api) -> None:
    await create_pod(server)
    path = server.path("pods", "x", group="v1")
    name, ready, status, restarts, _, ip, node, *_ = await row(server, path)
    assert (name, ready, status, restarts, ip, node) == ("x", "0/1", "Pending", "0", "<none>", "<none>")
    container = {"name": "main", "image": "i", "imageID": "i", "restartCount": 0}
    for state, is_ready, expected in (
        ({"waiting": {"reason": "CrashLoopBackOff"}}, False, "CrashLoopBackOff"),
        ({"terminated": {"exitCode": 3}}, False, "ExitCode:3"),
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, False, "Completed"),
        ({"running": {}}, True, "Running"),
    ):
        found = {**container, "ready": is_ready, "state": state}
        patch = {"status": {"phase": "Running", "containerStatuses": [found]}}
        await server.request("PATCH", f"{path}/status", patch, MERGE_PATCH)
        _, ready, status, *_ = await row(server, path)
        assert (ready, status) == ("1/1" if is_ready else "0/1", expected)


async def test_the_row_of_a_custom_resource_has_its_printer_columns(server: Api) -> None:
    await server.request("POST", server.path("computedomains", group=NVIDIA), domain())
    path = server.path("computedomains", "job", group=NVIDIA)
    summary = {"status": "Ready", "nodes": "2/2", "partitions": "p0", "channels": "3", "message": "all good"}
    patch = {"status": {"status": "Ready", "summary": summary}}
    code, patched = await server.request("PATCH", f"{path}/status", patch, MERGE_PATCH)
    assert code == 200, patched
    cells = await row(server, path)
    assert cells[:3] == ["job", "Ready", "2/2"]
    assert cells[-1].endswith("s")


async def test_a_watch_can_be_of_rows(server: Api) -> None:
    _, listed = await server.request("GET", server.path("configmaps", group="v1"))
    version = listed["metadata"]["resourceVersion"]
    body = {"metadata": {"name": "x"}, "data": {"a": "1"}}
    await server.request("POST", server.path("configmaps", group="v1"), body)
    path = server.path("configmaps", "x", group="v1")
    await server.request("PATCH", path, {"data": {"b": "2"}}, MERGE_PATCH)
    events = await server.watch(server.path("configmaps", group="v1"), 2, accept=TABLE, resourceVersion=version)
    assert [event["object"]["kind"] for event in events] == ["Table", "Table"]
    assert [event["object"]["rows"][0]["cells"][:2] for event in events] == [["x", 1], ["x", 2]]
    assert events[0]["object"]["columnDefinitions"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (660, "11m"),
        (7200, "120m"),
        (11000, "3h3m"),
        (200_000, "2d7h"),
    ],
)
def test_ages_are_those_of_kubectl(seconds: int, expected: str) -> None:
    assert human_duration(seconds) == expected


async def test_discovery_lists_groups_resources_and_subresources(server: Api) -> None:
    _, groups = await server.request("GET", "/apis")
    assert "resource.nvidia.com" in [group["name"] for group in groups["groups"]]
    _, core = await server.request("GET", "/api/v1")
    found = {one["name"]: one for one in core["resources"]}
    assert (found["pods"]["kind"], found["pods"]["shortNames"], found["pods"]["namespaced"]) == (
        "Pod",
        ["po"],
        True,
    )
    assert {"pods/status", "pods/log", "pods/exec", "nodes/status"} <= found.keys()
    _, ours = await server.request("GET", "/apis/resource.nvidia.com/v1beta1")
    assert [one["name"] for one in ours["resources"]] == ["computedomains", "computedomains/status"]


async def test_aggregated_discovery_has_the_same_resources(server: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _, found = await server.request("GET", "/apis", accept=accept)
    assert found["kind"] == "APIGroupDiscoveryList"
    (group,) = [one for one in found["items"] if one["metadata"]["name"] == "resource.nvidia.com"]
    (resource,) = group["versions"][0]["resources"]
    assert (resource["resource"], resource["scope"], resource["shortNames"]) == (
        "computedomains",
        "Namespaced",
        ["cd"],
    )
    assert resource["subresources"][0]["subresource"] == "status"
