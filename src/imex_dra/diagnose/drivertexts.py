"""What the programs of the driver say themselves, for a bundle: logs of their pods, and the last answers of
nvidia-imex-ctl on every node, which `imex node` shows on a page.

The API server reads the pages, as a proxy to the pod of `imex node`, so that nothing is executed in a pod. On
simulated racks, whose driver does not run in pods, it is a proxy to the node.
"""

import asyncio
from typing import Any, NamedTuple

from imex_dra.api.meta import Key, Resource
from imex_dra.api.names import IMEX_PAGE, NAMESPACE, NODE_PORT
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.reasons import listed
from imex_dra.api.views import NODES, PODS
from imex_dra.base.errors import Forbidden, ImexError
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.snapshot import Snapshot
from imex_dra.kube.client import Client

_LOG_LINES, _LOG_BYTES = 5000, 2_000_000
_AT_A_TIME = 16
_METRICS_FLAG = "--metrics-address="

Texts = tuple[dict[str, str], list[str]]
"""By file name in the bundle; and sentences on what could not be read."""


async def driver_logs(client: Client, snapshot: Snapshot) -> Texts:
    """Of the pods in the driver's namespace."""
    logs, problems = {}, []
    for pod in _driver_pods(snapshot):
        for container in pod.containers:
            try:
                text = await client.pod_log(pod.key, container.name, lines=_LOG_LINES, limit=_LOG_BYTES)
            except ImexError as error:
                problems.append(f"log of {container.name} in {pod.key}: {error}")
            else:
                logs[f"logs/{pod.name}/{container.name}.log"] = text.decode(errors="replace")
    return logs, problems


async def ctl_answers(client: Client, snapshot: Snapshot) -> Texts:
    """Of every node that has an NVLinkNode."""
    limit = asyncio.Semaphore(_AT_A_TIME)
    client = client.without_retries()

    async def read(page: _Page) -> bytes | ImexError:
        async with limit:
            try:
                return await client.proxied(page.resource, page.key, page.port, IMEX_PAGE)
            except ImexError as error:
                return error

    pages = _pages(snapshot)
    answers = await asyncio.gather(*map(read, pages))
    found: dict[str, str] = {}
    problems: dict[str, list[str]] = {}
    for page, answer in zip(pages, answers, strict=True):
        if isinstance(answer, bytes):
            found[f"nvidia-imex-ctl/{page.node}.txt"] = answer.decode(errors="replace")
        else:
            denied = f"you may not get {page.resource.plural}/proxy"
            cause = denied if isinstance(answer, Forbidden) else str(answer).replace(page.node, "…")
            problems.setdefault(cause, []).append(page.node)
    return found, [f"nvidia-imex-ctl on {listed(nodes)}: {cause}" for cause, nodes in problems.items()]


class _Page(NamedTuple):
    node: str
    resource: Resource[Any]
    key: Key
    port: int


def _pages(snapshot: Snapshot) -> list[_Page]:
    by_node = {
        pod.node: _Page(pod.node, PODS, pod.key, port)
        for pod in _driver_pods(snapshot)
        if pod.node and not pod.ended and (port := _port(pod))
    }
    names = [str(one["metadata"]["name"]) for one in snapshot.of(NVLINK_NODES.plural)]
    return [by_node.get(name) or _Page(name, NODES, Key("", name), NODE_PORT) for name in sorted(names)]


def _port(pod: ClusterPod) -> int:
    """Of the page of `imex node`; 0 if this is another pod, or it serves none."""
    for container in pod.spec["containers"].elements():
        arguments = [one.text for one in container["args"].elements()]
        if arguments[:1] == ["node"]:
            given = [one.rpartition(":")[2] for one in arguments if one.startswith(_METRICS_FLAG)]
            return next((int(port) for port in given if port.isdecimal()), 0 if given else NODE_PORT)
    return 0


def _driver_pods(snapshot: Snapshot) -> list[ClusterPod]:
    return [pod for pod in map(ClusterPod, snapshot.of(PODS.plural)) if pod.namespace == NAMESPACE]
