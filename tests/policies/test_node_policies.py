"""A token of `imex node` writes only the objects of the node that it was issued for."""

import uuid
from collections.abc import Awaitable, Callable

import pytest

from imex_dra.api.names import DRIVER, NAMESPACE
from tests.policies.guarded import NVLINK_NODES, SLICES, Guarded, RawClient, nvlink_node, refusal, resource_slice
from tests.waiting import until_async

pytestmark = pytest.mark.kube

DRY = {"dryRun": "All"}


class Node:
    """A Node, and the client of the node program on it."""

    def __init__(self, guarded: Guarded, name: str) -> None:
        self.name = name
        self.client = guarded.account("imex-node", node=name)


@pytest.fixture
async def nodes(guarded: Guarded) -> tuple[Node, Node]:
    names = [f"n-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        await guarded.admin.post("/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
    mine, other = (Node(guarded, name) for name in names)
    return mine, other


async def denied(request: Callable[[], Awaitable[object]], reason: str) -> None:
    """Requests are not carried out (DRY) until the API server, which loads policies in the background, refuses."""

    async def is_denied() -> bool:
        return reason in await refusal(request())

    await until_async(is_denied, what=reason)


async def allowed(request: Callable[[], Awaitable[object]]) -> None:
    """The API server loads RBAC rules in the background, too."""

    async def is_allowed() -> bool:
        found = await refusal(request())
        # Anything else than a right that is not known yet is no matter of time.
        assert found == "" or ("forbidden" in found and "cannot" in found)
        return not found

    await until_async(is_allowed)


async def test_nvlink_nodes(nodes: tuple[Node, Node]) -> None:
    mine, other = nodes
    client, reason = mine.client, "imex node writes only the NVLinkNode of its own node"
    await denied(lambda: client.post(NVLINK_NODES, nvlink_node(other.name), **DRY), reason)
    generated = {**nvlink_node(""), "metadata": {"generateName": mine.name}}
    await denied(lambda: client.post(NVLINK_NODES, generated, **DRY), reason)
    for node in nodes:
        await allowed(lambda node=node: node.client.post(NVLINK_NODES, nvlink_node(node.name)))  # type: ignore[misc]
    status = {"status": {"fabric": {"state": "ok"}}}
    await denied(lambda: client.change(f"{NVLINK_NODES}/{other.name}/status", status, **DRY), reason)
    found = await client.change(f"{NVLINK_NODES}/{mine.name}/status", status)
    assert found["status"]["fabric"]["state"] == "ok"


async def test_a_token_that_names_no_node_writes_nothing(guarded: Guarded, nodes: tuple[Node, Node]) -> None:
    client, name = guarded.account("imex-node"), nodes[0].name
    reason = "the token of imex node names no node"
    await denied(lambda: client.post(NVLINK_NODES, nvlink_node(name), **DRY), reason)
    await denied(lambda: client.post(SLICES, resource_slice("unbound", name), **DRY), reason)


async def test_resource_slices(guarded: Guarded, nodes: tuple[Node, Node]) -> None:
    mine, other = nodes
    client, own, foreign = mine.client, f"imex-{mine.name}", f"imex-{other.name}"
    of_node, of_driver = "only ResourceSlices of its own node", f"only ResourceSlices of the driver {DRIVER}"
    await denied(lambda: client.post(SLICES, resource_slice(foreign, other.name), **DRY), of_node)
    of_gpus = resource_slice(own, mine.name, driver="gpu.nvidia.com")
    await denied(lambda: client.post(SLICES, of_gpus, **DRY), of_driver)
    in_pool = resource_slice(own, mine.name, pool=other.name)
    await denied(lambda: client.post(SLICES, in_pool, **DRY), of_driver)
    await allowed(lambda: client.post(SLICES, resource_slice(own, mine.name)))
    await guarded.admin.post(SLICES, resource_slice(foreign, other.name))
    await guarded.admin.post(SLICES, resource_slice(f"gpu-{mine.name}", mine.name, driver="gpu.nvidia.com"))
    devices = {"spec": {"devices": [{"name": "channel-0"}, {"name": "channel-1"}]}}
    await denied(lambda: client.change(f"{SLICES}/{foreign}", devices, **DRY), of_node)
    await denied(lambda: client.remove(f"{SLICES}/{foreign}", **DRY), of_node)
    await denied(lambda: client.remove(f"{SLICES}/gpu-{mine.name}", **DRY), of_driver)
    await allowed(lambda: client.change(f"{SLICES}/{own}", devices))
    await allowed(lambda: client.remove(f"{SLICES}/{own}"))


async def test_the_status_of_claims(guarded: Guarded, nodes: tuple[Node, Node]) -> None:
    """The account has no right to it; the policy holds also if an administrator grants one."""
    mine, other = nodes
    await _grant_claim_status(guarded.admin)
    for node in nodes:
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": node.name}}
        request = {"name": "channel", "exactly": {"deviceClassName": "any"}}
        await guarded.admin.post(guarded.claims, {**claim, "spec": {"devices": {"requests": [request]}}})
        result = {"request": "channel", "driver": DRIVER, "pool": node.name, "device": "channel-0"}
        status = {"status": {"allocation": {"devices": {"results": [result]}}}}
        await guarded.admin.change(f"{guarded.claims}/{node.name}/status", status)

    def report(client: RawClient, node: Node, **parameters: str) -> Awaitable[object]:
        device = {"driver": DRIVER, "pool": node.name, "device": "channel-0", "data": {"channel": 1}}
        return client.change(
            f"{guarded.claims}/{node.name}/status", {"status": {"devices": [device]}}, **parameters
        )

    try:
        await denied(lambda: report(mine.client, other, **DRY), "claims that are allocated on its own node")
        await allowed(lambda: report(mine.client, mine))
    finally:
        # Other tests compare the rights of the account with the table.
        await guarded.admin.remove("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/claim-status")


async def _grant_claim_status(admin: RawClient) -> None:
    group = "rbac.authorization.k8s.io"
    metadata, base = {"name": "claim-status"}, f"/apis/{group}/v1"
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "verbs": ["*"]},
    ]
    account = {"kind": "ServiceAccount", "name": "imex-node", "namespace": NAMESPACE}
    await admin.post(f"{base}/clusterroles", {"metadata": metadata, "rules": rules})
    await admin.post(
        f"{base}/clusterrolebindings",
        {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "claim-status"},
            "subjects": [account],
        },
    )
