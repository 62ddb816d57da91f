"""Installs the driver: manifests, service account tokens, and the wait until every node is ready."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

import imex_dra
from imex_dra.api.meta import ObjectMeta, Resource, View
from imex_dra.api.names import DRIVER, NAMESPACE
from imex_dra.api.views import RESOURCE_SLICES
from imex_dra.base.errors import Misconfigured, NotFound, NotYet, Retryable
from imex_dra.kube.client import Client
from imex_dra.kube.connection import connect
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.racks import SimulatedNode

_PACKAGE = Path(imex_dra.__file__).parent
_PACKAGED = _PACKAGE / "deploy"
_SOURCE_TREE = _PACKAGE.parents[1] / "deploy"

_CONTROLLER_ACCOUNT = "imex-controller"
_NODE_ACCOUNT = "imex-node"
_TOKEN_SECONDS = 365 * 24 * 3600
"""Nothing renews the tokens, and a cluster may run for days."""
_CONCURRENT_TOKENS = 8
_TOKEN_RETRY = 0.1
_PERIOD = 0.25


def manifests_directory(candidates: tuple[Path, ...] = (_PACKAGED, _SOURCE_TREE)) -> Path:
    """`deploy/` of the installed package or of the source tree."""
    for directory in candidates:
        if (directory / "crds").is_dir() and (directory / "rbac.yaml").is_file():
            return directory
    raise Misconfigured(
        f"the manifests of the driver are in none of {', '.join(map(str, candidates))}: install imex-dra from its"
        " wheel, or run it from its source tree"
    )


def apply_manifests(kubectl: Kubectl, *, wait: bool) -> None:
    """`wait`: until the kinds of the CRDs are served, which takes a real API server a moment."""
    # One call for all files: starting kubectl takes longer than the requests. Without client-side validation:
    # the API server validates the objects itself.
    directory = manifests_directory()
    files = [f"--filename={file}" for file in (directory / "crds", *sorted(directory.glob("*.yaml")))]
    kubectl("apply", "--server-side", "--validate=false", *files)
    if wait:
        kubectl(
            "wait", "--for=condition=Established", "--timeout=60s", f"--filename={directory / 'crds'}", within=70
        )


def mark_nodes(kubectl: Kubectl, nodes: Sequence[SimulatedNode]) -> None:
    """Labels and taints of the cluster file. Not by the kubelets: a real API server keeps them from some."""
    by_labels: dict[tuple[str, ...], list[str]] = {}
    by_taints: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        labels = tuple(f"{name}={value}" for name, value in sorted(node.labels.items()))
        by_labels.setdefault(labels, []).append(node.name)
        by_taints.setdefault(tuple(map(str, node.taints)), []).append(node.name)
    for verb, marks in (("label", by_labels), ("taint", by_taints)):
        for words, names in marks.items():
            if words:
                kubectl(verb, "nodes", *names, *words, "--overwrite")


class _Token(Struct):
    token: str


class _TokenRequest(Struct):
    status: _Token


class TokenClient(Client):
    """Requests service account tokens over HTTP. One kubectl for each of 36 nodes would take too long."""

    async def token(self, account: str, *, node: str = "") -> str:
        """Wait for the account, and for the node that the token is bound to, to exist."""
        while True:
            try:
                return await self._token(account, node)
            except (NotFound, Retryable):
                await asyncio.sleep(_TOKEN_RETRY)

    async def _token(self, account: str, node: str) -> str:
        spec: dict[str, object] = {"audiences": [], "expirationSeconds": _TOKEN_SECONDS}
        if node:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        answer = await self._request("POST", path, content=msgspec.json.encode(body))
        return msgspec.json.decode(answer, type=_TokenRequest).status.token


async def node_tokens(kubeconfig: Path, nodes: Sequence[str], *, within: float) -> dict[str, str]:
    """A token for each node, bound to it as the token of a DaemonSet's pod is. Raises TimeoutError."""
    client = TokenClient(connect("imex-sandbox", kubeconfig))
    limit = asyncio.Semaphore(_CONCURRENT_TOKENS)

    async def request(node: str) -> str:
        async with limit:
            return await client.token(_NODE_ACCOUNT, node=node)

    try:
        async with asyncio.timeout(within), asyncio.TaskGroup() as group:
            tasks = {node: group.create_task(request(node)) for node in nodes}
        return {node: task.result() for node, task in tasks.items()}
    finally:
        await client.close()


async def controller_token(kubeconfig: Path) -> str:
    client = TokenClient(connect("imex-sandbox", kubeconfig))
    try:
        async with asyncio.timeout(60):
            return await client.token(_CONTROLLER_ACCOUNT)
    finally:
        await client.close()


class Taint(View, frozen=True):
    key: str


class NodeSpec(View, frozen=True):
    taints: tuple[Taint, ...] = ()


class Node(View, frozen=True):
    """A node is ready when the control plane has removed its `not-ready` taint."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()


NODES = Resource(Node, "", "v1", "nodes", namespaced=False)


def _is_tainted_by_the_control_plane(node: Node) -> bool:
    """Other taints are those of the cluster file."""
    return any(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints)


def what_is_missing(
    expected: Collection[str], nodes: Collection[Node], drivers: Collection[str], publishing: Collection[str]
) -> str:
    """Empty if all are ready. `drivers`: the nodes with a driver; `publishing`: those with a ResourceSlice."""
    ready = {node.metadata.name for node in nodes if not _is_tainted_by_the_control_plane(node)}
    if missing := sorted(set(expected) - ready):
        return f"{len(missing)} of {len(expected)} nodes are not Ready, for example {missing[0]}"
    if missing := sorted(set(drivers) - set(publishing)):
        return f"{len(missing)} of {len(drivers)} nodes have no ResourceSlice, for example {missing[0]}"
    return ""


async def wait_until_ready(
    kubeconfig: Path, expected: Collection[str], drivers: Collection[str], *, within: float
) -> None:
    client = Client.connect("imex-sandbox", kubeconfig)
    missing = "the API server does not answer"
    try:
        async with asyncio.timeout(within):
            while missing:
                try:
                    nodes = await client.list(NODES)
                    publishing = await _publishing_nodes(client) if drivers else ()
                    missing = what_is_missing(expected, nodes, drivers, publishing)
                except Retryable as error:
                    missing = str(error)
                await asyncio.sleep(_PERIOD if missing else 0)
    except TimeoutError:
        raise NotYet(f"the cluster is not ready after {within:.0f} s: {missing}") from None
    finally:
        await client.close()


async def _publishing_nodes(client: Client) -> set[str]:
    return {found.spec.node_name for found in await client.list(RESOURCE_SLICES) if found.spec.driver == DRIVER}
