"""`python -m bench.plainclient KUBECONFIG`: lists and watches what the controller does, and only decodes it.

A yardstick for the controller. It keeps the objects as dicts. After the list it prints the seconds that it took.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Resource
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.views import NAMESPACES, NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from imex_dra.kube.client import EVERYTHING, Client

KINDS: tuple[Resource[Any], ...] = (
    NAMESPACES,
    NODES,
    NVLINK_NODES,
    NVLINK_PARTITIONS,
    COMPUTE_DOMAINS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
)


async def follow(client: Client, resource: Resource[Any], kept: dict[str, Any], listed: asyncio.Event) -> None:
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "3600"}
    async with client.watch(resource, EVERYTHING, inactivity=3600, **initial) as batches:
        async for event in _events(batches):
            if event["type"] == "BOOKMARK":
                listed.set()
            else:
                kept[event["object"]["metadata"]["uid"]] = event["object"]


async def _events(batches: AsyncIterator[list[bytes]]) -> AsyncIterator[dict[str, Any]]:
    async for batch in batches:
        for text in filter(None, batch):
            yield msgspec.json.decode(text)


async def main(kubeconfig: Path) -> None:
    began = time.monotonic()
    client = Client.connect("imex-bench", kubeconfig)
    kept: dict[str, Any] = {}
    async with asyncio.TaskGroup() as group:
        lists = [asyncio.Event() for _ in KINDS]
        for resource, listed in zip(KINDS, lists, strict=True):
            group.create_task(follow(client, resource, kept, listed))
        for listed in lists:
            await listed.wait()
        print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
