"""Runs the check pod of `imex preflight --node`: creates it, waits for its end, reads its log, deletes it."""

import asyncio
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from imex_dra.api.meta import Key, ObjectMeta, Resource, View, key_of
from imex_dra.api.views import PodStatus
from imex_dra.base.errors import Unreadable
from imex_dra.diagnose.nodecheck import CONTAINER, DEADLINE, NodeCheck, check_pod, parse_log
from imex_dra.kube.client import Client

_LOG_LINES = 1000
_LOG_BYTES = 1 << 20
_ENDED = ("Succeeded", "Failed")


class Pod(View, frozen=True):
    """With a whole spec, unlike the narrow view of caches."""

    metadata: ObjectMeta
    spec: dict[str, Any]
    status: PodStatus = PodStatus()


PODS = Resource(Pod, "", "v1", "pods")


class PodClient(Protocol):
    async def create(self, resource: Resource[Pod], obj: Pod) -> Pod: ...
    async def get(self, resource: Resource[Pod], key: Key) -> Pod: ...
    async def pod_log(self, key: Key, container: str, *, lines: int, limit: int) -> bytes: ...
    async def delete(self, resource: Resource[Pod], obj: Pod) -> None: ...


async def check_node(
    kubeconfig: Path | None, context: str, node: str, namespace: str, image: str
) -> list[NodeCheck]:
    client = Client.connect("imex-cli", kubeconfig, context)
    try:
        return await run_check(client, check_pod(node, namespace, image))
    finally:
        await client.close()


async def run_check(
    client: PodClient, manifest: dict[str, Any], *, seconds: float = DEADLINE + 15, pause: float = 1.0
) -> list[NodeCheck]:
    """Longer than the pod's own deadline, which does not run while no kubelet has seen the pod."""
    pod = await client.create(PODS, msgspec.convert(manifest, Pod))
    try:
        await _ended(client, pod, seconds, pause)
        log = await client.pod_log(key_of(pod), CONTAINER, lines=_LOG_LINES, limit=_LOG_BYTES)
    finally:
        # Also after Ctrl-C: a privileged pod must not stay.
        await client.delete(PODS, pod)
    return parse_log(log.decode(errors="replace"))


async def _ended(client: PodClient, pod: Pod, seconds: float, pause: float) -> None:
    deadline = time.monotonic() + seconds
    while (phase := (await client.get(PODS, key_of(pod))).status.phase) not in _ENDED:
        if time.monotonic() > deadline:
            where = f"pod {key_of(pod)} on node {pod.spec['nodeName']}"
            raise Unreadable(
                f"{where} has not ended after {seconds:.0f} s, and is {phase or 'Pending'}; check the name of the"
                " node, and that it can pull the image (--image)"
            )
        await asyncio.sleep(pause)
