"""RBAC from both sides, with the tokens of the programs: what the table grants is allowed, and nothing else is.

The chart has the roles of the same table (tests/chart/test_chart.py). That the programs need no more is found
where they run: tests/driver/test_permissions.py and tests/chart/test_install.py read the audit log.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

from imex_dra.api.names import AUTHORITY_SECRET, DAEMON_SECRET, NAMESPACE, WEBHOOK
from imex_dra.api.rbac import ACCOUNTS, Rule
from imex_dra.base.errors import Forbidden, ImexError
from tests.policies.guarded import NVLINK_NODES, SLICES, Guarded, RawClient, nvlink_node, resource_slice
from tests.waiting import until_async

pytestmark = pytest.mark.kube

VERSIONS = {"": "/api/v1", "resource.nvidia.com": "v1beta1", "imex-dra.io": "v1alpha1"}
"""By API group; v1 of all others."""
CLUSTER_SCOPED = {
    "namespaces",
    "nodes",
    "nvlinknodes",
    "nvlinkpartitions",
    "resourceslices",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
}
METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}
EVERYBODY = {"authentication.k8s.io", "authorization.k8s.io"}
"""API groups in which every account may ask what it is and may do."""

SERVICE_ACCOUNTS = {("certificates.k8s.io", "clustertrustbundles")}
"""What Kubernetes lets every service account read; since 1.37, by system:cluster-trust-bundle-discovery."""

Right = tuple[str, str, str, tuple[str, ...]]
"""API group, resource, verb and names of objects."""


class Call(NamedTuple):
    method: str
    path: str
    parameters: dict[str, str] = {}
    body: dict[str, Any] = {}


def granted(account: str) -> Iterator[tuple[Rule, str]]:
    for rule in ACCOUNTS[account]:
        yield from ((rule, verb) for verb in sorted(rule.verbs))


def call_of(rule: Rule, verb: str, namespace: str) -> Call:
    """A request that needs exactly this right. It changes nothing: its object does not exist, or is empty."""
    resource, _, subresource = rule.resource.partition("/")
    version = VERSIONS.get(rule.group, "v1")
    base = version if version.startswith("/") else f"/apis/{rule.group}/{version}"
    everywhere = verb in ("list", "watch") and not rule.own_namespace
    if resource not in CLUSTER_SCOPED and not everywhere:
        base += f"/namespaces/{NAMESPACE if rule.own_namespace else namespace}"
    path = f"{base}/{resource}"
    if verb in ("get", "patch", "delete"):
        path += f"/{rule.names[0] if rule.names else 'absent'}"
    path += f"/{subresource}" if subresource else ""
    parameters = {"watch": "true", "timeoutSeconds": "1"} if verb == "watch" else {}
    return Call(METHODS.get(verb, "GET"), path, parameters)


async def is_forbidden(client: RawClient, call: Call) -> bool:
    dry = {"dryRun": "All"} if call.method != "GET" else {}
    content = msgspec.json.encode(call.body) if call.method in ("POST", "PATCH") else None
    kind = "application/merge-patch+json" if call.method == "PATCH" else "application/json"
    try:
        await client.without_retries()._request(
            call.method, call.path, params=call.parameters | dry, content=content, headers={"Content-Type": kind}
        )
    except Forbidden:
        return True
    except ImexError:
        return False  # the API server asks for the right before it looks at the object
    return False


async def until_empty(find: Callable[[], Awaitable[Collection[object]]]) -> None:
    """The API server loads rules and policies in the background. Fails with what is still found."""

    last: list[object] = []

    async def is_empty() -> bool:
        last[:] = await find()
        return not last

    with suppress(AssertionError):
        await until_async(is_empty, within=30)
    assert last == []


class Programs:
    """Programs with their tokens; that of `imex node` is bound to one of two nodes."""

    def __init__(self, guarded: Guarded, own: str, other: str) -> None:
        self.guarded, self.own, self.other = guarded, own, other

    def client(self, account: str) -> RawClient:
        return self.guarded.account(account, node=self.own if account == "imex-node" else None)


@pytest.fixture
async def programs(guarded: Guarded) -> AsyncIterator[Programs]:
    own, other = (f"n-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in (own, other):
        await guarded.admin.post("/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
        await guarded.admin.post(NVLINK_NODES, nvlink_node(name))
        await guarded.admin.post(SLICES, resource_slice(f"{name}-slice", name))
    yield Programs(guarded, own, other)
    for name in (own, other):
        for path in (f"/api/v1/nodes/{name}", f"{NVLINK_NODES}/{name}", f"{SLICES}/{name}-slice"):
            await guarded.admin.remove(path)


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_every_right_of_the_table_allows_its_request(programs: Programs, account: str) -> None:
    client, namespace = programs.client(account), programs.guarded.namespace

    async def forbidden() -> list[Call]:
        calls = [call_of(rule, verb, namespace) for rule, verb in granted(account)]
        answers = await asyncio.gather(*(is_forbidden(client, call) for call in calls))
        return [call for call, answer in zip(calls, answers, strict=True) if answer]

    await until_empty(forbidden)


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_a_token_has_no_right_that_is_not_in_the_table(programs: Programs, account: str) -> None:
    client = programs.client(account)
    for namespace in (NAMESPACE, programs.guarded.namespace):
        await until_empty(lambda namespace=namespace: surplus_or_missing(client, account, namespace))  # type: ignore[misc]


async def surplus_or_missing(client: RawClient, account: str, namespace: str) -> set[Right]:
    """Where the rights of the token in a namespace differ from the table."""
    expected = {
        (rule.group, rule.resource, verb, rule.names)
        for rule, verb in granted(account)
        if namespace == NAMESPACE or not rule.own_namespace
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    found = await client.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    rights = {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in found["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group not in EVERYBODY and (group, resource) not in SERVICE_ACCOUNTS
    }
    return rights ^ expected


RESOURCES, NVIDIA, IMEX = (
    "/apis/resource.k8s.io/v1",
    "/apis/resource.nvidia.com/v1beta1",
    "/apis/imex-dra.io/v1alpha1",
)
ADMISSION, RBAC = "/apis/admissionregistration.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1"
OWN = f"/api/v1/namespaces/{NAMESPACE}"
NEVER: dict[str, tuple[str, ...]] = {
    "imex-controller": (
        f"GET {OWN}/secrets",
        f"GET {OWN}/secrets/of-an-administrator",
        f"DELETE {OWN}/secrets/{DAEMON_SECRET}",
        "GET /api/v1/secrets",
        "GET /api/v1/namespaces/TEAM/secrets/any",
        "POST /api/v1/namespaces/TEAM/secrets",
        "GET /api/v1/pods",
        f"POST {OWN}/pods",
        f"POST {OWN}/serviceaccounts/imex-node/token",
        "DELETE /api/v1/nodes/OTHER",
        "PATCH /api/v1/nodes/OTHER/status",
        "DELETE /api/v1/namespaces/TEAM",
        f"POST {NVIDIA}/namespaces/TEAM/computedomains",
        f"DELETE {NVIDIA}/namespaces/TEAM/computedomains/any",
        f"PATCH {RESOURCES}/namespaces/TEAM/resourceclaims/any",
        f"PATCH {RESOURCES}/namespaces/TEAM/resourceclaims/any/status",
        f"PATCH {RESOURCES}/namespaces/TEAM/resourceclaimtemplates/any",
        f"POST {RESOURCES}/resourceslices",
        f"PATCH {IMEX}/nvlinknodes/OTHER/status",
        f"DELETE {IMEX}/nvlinknodes/OTHER",
        "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/any",
        f"PATCH {ADMISSION}/validatingwebhookconfigurations/of-somebody-else",
        f"DELETE {ADMISSION}/validatingwebhookconfigurations/{WEBHOOK}",
        f"PATCH {ADMISSION}/validatingadmissionpolicies/imex-node-nvlinknodes",
        f"PATCH {RBAC}/clusterroles/imex-controller",
        f"POST {RBAC}/clusterrolebindings",
    ),
    "imex-node": (
        f"GET {OWN}/secrets/{DAEMON_SECRET}",
        f"GET {OWN}/secrets/{AUTHORITY_SECRET}",
        "GET /api/v1/pods",
        f"POST {OWN}/pods",
        "GET /api/v1/nodes",
        "PATCH /api/v1/nodes/OWN",
        "PATCH /api/v1/nodes/OTHER",
        f"GET {RESOURCES}/resourceclaims",
        f"PATCH {RESOURCES}/namespaces/TEAM/resourceclaims/any/status",
        f"PATCH {NVIDIA}/namespaces/TEAM/computedomains/any",
        f"PATCH {NVIDIA}/namespaces/TEAM/computedomains/any/status",
        f"PATCH {IMEX}/nvlinkpartitions/any",
        f"PATCH {IMEX}/nvlinkpartitions/any/status",
        f"GET {IMEX}/nvlinknodes",
        f"PATCH {IMEX}/nvlinknodes/OTHER",
        f"PATCH {IMEX}/nvlinknodes/OTHER/status",
        f"DELETE {IMEX}/nvlinknodes/OTHER",
        f"DELETE {IMEX}/nvlinknodes/OWN",
        f"PATCH {RESOURCES}/resourceslices/OTHER-slice",
        f"DELETE {RESOURCES}/resourceslices/OTHER-slice",
        f"PATCH /apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/imex-controller",
        "POST /apis/events.k8s.io/v1/namespaces/TEAM/events",
    ),
    "imex-webhook": (
        f"GET {OWN}/secrets/{AUTHORITY_SECRET}",
        "GET /api/v1/pods",
        "GET /api/v1/nodes",
        f"PATCH {NVIDIA}/namespaces/TEAM/computedomains/any",
        f"PATCH {NVIDIA}/namespaces/TEAM/computedomains/any/status",
        f"POST {RESOURCES}/namespaces/TEAM/resourceclaimtemplates",
        f"GET {RESOURCES}/resourceclaimtemplates",
        f"GET {RESOURCES}/resourceclaims",
        f"PATCH {IMEX}/nvlinkpartitions/any/status",
        f"PATCH {ADMISSION}/validatingwebhookconfigurations/{WEBHOOK}",
    ),
}
"""By account. OWN and OTHER are two nodes, `imex node` runs on the first; TEAM is a namespace of users."""


@pytest.mark.parametrize("account", NEVER)
async def test_what_a_program_must_never_do_is_denied(programs: Programs, account: str) -> None:
    names = {"OWN": programs.own, "OTHER": programs.other, "TEAM": programs.guarded.namespace}

    def call(text: str) -> Call:
        method, _, path = text.partition(" ")
        for word, name in names.items():
            path = "/".join(part.replace(word, name) for part in path.split("/"))
        # A change: a patch without one is not refused by a policy, because nothing is written.
        return Call(method, path, body={"metadata": {"labels": {"changed": "yes"}}})

    client = programs.client(account)

    async def admitted() -> list[str]:
        calls = [call(text) for text in NEVER[account]]
        answers = await asyncio.gather(*(is_forbidden(client, one) for one in calls))
        return [text for text, answer in zip(NEVER[account], answers, strict=True) if not answer]

    await until_empty(admitted)
