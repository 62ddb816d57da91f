"""Nodes that an administrator does not expect to return: what `imex forget-node` does, and how one returns.

A forgotten node is treated as if its Node object were deleted: it leaves, and nothing waits for its report or its
acknowledgment. Its name stands in an annotation of the NVLinkPartition until it reports again; then it must pass
admission like a new node. Its last report is deleted, because it would look like a current one if no channel has
been released since.
"""

from contextlib import suppress

from msgspec import structs

from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import FORGET_ANNOTATION
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.views import NODES
from imex_dra.base.errors import Conflict, NotFound, Rejected
from imex_dra.controller.caches import Caches, is_node_ready, staying_nodes
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes

_ATTEMPTS = 10


async def partitions_to_forget(client: Client, node: str) -> list[NVLinkPartition]:
    """The partitions that wait for the node. Raises Rejected if it must not, or need not, be forgotten."""
    try:
        found = await client.get(NODES, Key("", node))
    except NotFound as error:
        raise Rejected(f"there is no Node {node}: nothing waits for it") from error
    if is_node_ready(found):
        raise Rejected(f"node {node} is Ready: drain it and shut it down first, or delete its Node object")
    partitions = [partition for partition in await client.list(NVLINK_PARTITIONS) if _lists(partition, node)]
    if not partitions:
        raise Rejected(f"no NVLinkPartition lists node {node}: nothing waits for it")
    return partitions


def _lists(partition: NVLinkPartition, node: str) -> bool:
    return node in staying_nodes(partition) | set(partition.status.pending_reports)


async def forget(client: Client, node: str, partitions: list[NVLinkPartition]) -> None:
    # The report goes first. After the annotation, an old report together with a Node that is Ready again would be
    # taken for the node's return.
    with suppress(NotFound):
        await client.delete(NVLINK_NODES, await client.get(NVLINK_NODES, Key("", node)))
    for partition in partitions:
        await _add_name(client, key_of(partition), node)


async def _add_name(client: Client, partition: Key, node: str) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        # The controller writes the object, too; the deletion of the report alone makes it do so.
        current = await client.get(NVLINK_PARTITIONS, partition)
        try:
            await _write_names(client, current, current.forgotten_nodes | {node})
            return
        except Conflict:
            if attempt == _ATTEMPTS:
                raise


async def without_returned_nodes(client: Client, caches: Caches, partition: NVLinkPartition) -> NVLinkPartition:
    away = still_away(caches, partition)
    if away == partition.forgotten_nodes:
        return partition
    written = await _write_names(client, partition, away)
    caches.partitions.upsert(written)
    return written


def still_away(caches: Caches, partition: NVLinkPartition) -> set[str]:
    """The forgotten nodes, without those that report again or whose Node is deleted."""
    return {node for node in partition.forgotten_nodes if not _has_returned(caches, node, partition)}


def _has_returned(caches: Caches, name: str, partition: NVLinkPartition) -> bool:
    node, report = caches.nodes.get(Key("", name)), caches.nvlink_nodes.get(Key("", name))
    if node is None:
        return True
    if report is None or report.status.partition != partition.metadata.name:
        return False
    return report.status.acknowledged_epoch >= partition.status.epoch and is_node_ready(node)


async def _write_names(client: Client, partition: NVLinkPartition, names: set[str]) -> NVLinkPartition:
    others = {name: text for name, text in partition.metadata.annotations.items() if name != FORGET_ANNOTATION}
    annotations = others | ({FORGET_ANNOTATION: ",".join(sorted(names))} if names else {})
    after = structs.replace(partition, metadata=structs.replace(partition.metadata, annotations=annotations))
    return await patch_changes(client, NVLINK_PARTITIONS, partition, after)
