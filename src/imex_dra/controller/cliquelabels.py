"""Sets the clique label of Nodes, which workloads use as a topology key, to the partition that the node reports.

GPU Feature Discovery and administrators may set the same label. Server-side apply records who set a field. We
apply without force: the API server then refuses to change a value that somebody else set, and names its owner.
Ours yields, and a condition of the partition and an Event report the difference.
"""

import re
from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from imex_dra.api import nodereasons
from imex_dra.api.meta import Key
from imex_dra.api.names import CLIQUE_LABEL, PartitionId
from imex_dra.api.nvlinkpartition import CLIQUE_LABELS, NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import NODES, Node
from imex_dra.base.clock import Clock
from imex_dra.base.errors import Conflict
from imex_dra.controller.caches import Caches, clique_label
from imex_dra.kube.client import Client
from imex_dra.kube.conditions import find_condition, with_condition
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import apply_fields, patch_changes

_OWNER = re.compile(r'conflict with "([^"]+)"')
"""In the message of a refused apply. Other conflicts, such as a Node that was created again, do not contain it."""

_PARTITION_DELAY = 5.0
"""Seconds until a partition that does not exist yet is looked for again."""


def owner_in(error: Conflict) -> str | None:
    """The field manager that the API server names; None if the conflict is another one."""
    found = _OWNER.search(str(error))
    return found.group(1) if found else None


def with_labels_condition(
    partition: NVLinkPartition, differences: Sequence[Explanation], now: datetime
) -> NVLinkPartition:
    """The condition is added when a label differs, and then stays."""
    conditions = partition.status.conditions
    if not differences and find_condition(conditions, CLIQUE_LABELS) is None:
        return partition
    first = differences[0] if differences else nodereasons.clique_labels_match()
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    conditions = with_condition(
        conditions,
        CLIQUE_LABELS,
        status=not differences,
        reason=first.reason,
        message=first.message() + more,
        now=now,
    )
    return structs.replace(partition, status=structs.replace(partition.status, conditions=conditions))


class CliqueLabelReconciler:
    """Reconciles one Node. Runs with one worker: a reconcile also reads the labels of other nodes."""

    def __init__(self, client: Client, caches: Caches, events: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._clock = clock
        self._owners: dict[str, str] = {}
        """Who set the label of a node that differs. Only a refused apply says it."""

    async def reconcile(self, key: Key) -> float | None:
        node, nvlink_node = self._caches.nodes.get(key), self._caches.nvlink_nodes.get(key)
        partition = PartitionId(nvlink_node.status.partition) if nvlink_node else PartitionId("")
        self._owners.pop(key.name, None)
        if node is not None and partition:
            await self._apply(node, partition)
        # A node that has moved or is gone may be the one that a condition names.
        delays = [await self._write_condition(name) for name in {partition, *self._differing()} - {""}]
        return max(filter(None, delays), default=None)

    async def _apply(self, node: Node, partition: PartitionId) -> None:
        try:
            fields = {"metadata": {"labels": {CLIQUE_LABEL: partition}}}
            self._caches.nodes.upsert(await apply_fields(self._client, NODES, node, fields))
        except Conflict as error:
            owner = owner_in(error)
            if owner is None:
                raise
            self._owners[node.metadata.name] = owner
            found = self._difference(node, partition)
            self._events.warn(NODES, node, found.reason, found.message())

    def _difference(self, node: Node, partition: PartitionId) -> Explanation:
        return nodereasons.clique_label_differs(
            node=node.metadata.name,
            label=node.metadata.labels.get(CLIQUE_LABEL, ""),
            owner=self._owners.get(node.metadata.name, "another client"),
            partition=partition,
        )

    def _differences(self, partition: PartitionId) -> list[Explanation]:
        reporting = self._caches.nvlink_nodes.by("partition", partition)
        names = sorted(found.metadata.name for found in reporting if found.status.partition == partition)
        nodes = filter(None, (self._caches.nodes.get(Key("", name)) for name in names))
        return [self._difference(node, partition) for node in nodes if clique_label(node) - {partition}]

    def _differing(self) -> set[PartitionId]:
        return {PartitionId(p.metadata.name) for p in self._caches.partitions.by("label_differs", True)}

    async def _write_condition(self, name: PartitionId) -> float | None:
        before, differences = self._caches.partitions.get(Key("", name)), self._differences(name)
        if before is None:
            return _PARTITION_DELAY if differences else None
        after = with_labels_condition(before, differences, self._clock.now())
        written = await patch_changes(self._client, NVLINK_PARTITIONS, before, after, subresource="status")
        self._caches.partitions.upsert(written)
        return None
