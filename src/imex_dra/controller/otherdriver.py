"""Guard against NVIDIA's DRA driver in the same cluster.

Both drivers reconcile every ComputeDomain and answer to one driver name, so they would undo each other's work.
While the other one is present, the controller changes nothing but conditions of its own kinds, and ends with an
exit status of its own. It does not wait inside: the kubelet restarts it, and it checks again. A restarted program
has no half of its work left, and a crash loop is what an operator notices.

What counts as evidence must not let anybody stop this driver who has no power over it otherwise:

- Anybody with the role `edit` in a namespace can create a DaemonSet or a Lease there. Outside the namespaces of
  administrators they count only together with a foreign ResourceSlice.
- A kubelet may create ResourceSlices of its own node. Alone, such a slice concerns only that node: `imex node`
  ends there (`node/otherdriver.py`), and the controller records an Event.

NVIDIA's driver, once it serves, has both a DaemonSet and slices, wherever it is installed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import structlog
from msgspec import structs

from imex_dra.api import nodereasons
from imex_dra.api.meta import OTHER_DRIVER, Key, Object, Resource, key_of
from imex_dra.api.names import DRIVER, LEASE, MANAGED_BY, MANAGED_BY_LABEL
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import DAEMON_SETS, LEASES, RESOURCE_SLICES, DaemonSet, Lease, ResourceSlice
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, OtherDriver
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.conditions import find_condition, with_condition
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store

log = structlog.get_logger()

_PROGRAMS = ("compute-domain-kubelet-plugin", "compute-domain-daemon")
"""Programs of NVIDIA's driver that run as DaemonSets. Its part for GPUs is another program, and no conflict."""

_LEASE_NAMES = ("dra-driver-nvidia-gpu-controller", "nvidia-dra-driver-gpu-controller")
"""Its controller's Lease, under the present and the former name of its Helm chart."""

_ADMIN_NAMESPACES = {
    "dra-driver-nvidia-gpu",
    "nvidia-dra-driver-gpu",
    "gpu-operator",
    "nvidia-gpu-operator",
    "kube-system",
}
"""Namespaces that its documentation installs it into, and that only administrators can write to."""

_CLOCK_DIFFERENCE = timedelta(seconds=60)
"""Between this machine and the one that renews the Lease."""


def find_other_driver(
    daemon_sets: Iterable[DaemonSet], leases: Iterable[Lease], slices: Iterable[ResourceSlice], now: datetime
) -> list[str]:
    """The objects that prove it, as `Kind namespace/name`; empty if there is no proof. `slices`: foreign ones."""
    programs = [("DaemonSet", key_of(found)) for found in daemon_sets if _runs_other_driver(found)]
    programs += [("Lease", key_of(found)) for found in leases if _is_held(found, now)]
    published = [f"ResourceSlice {found.metadata.name}" for found in slices]
    trusted = any(key.namespace in _ADMIN_NAMESPACES for _, key in programs)
    if not trusted and not (programs and published):
        return []
    return [f"{kind} {key}" for kind, key in sorted(programs)] + sorted(published)


def _runs_other_driver(found: DaemonSet) -> bool:
    containers = found.spec.template.spec.containers
    words = [word for container in containers for word in (*container.command, *container.args)]
    return any(program in word for program in _PROGRAMS for word in words)


def _is_held(lease: Lease, now: datetime) -> bool:
    """A Lease stays when its driver is removed, without a holder or no longer renewed."""
    try:
        renewed = datetime.fromisoformat(lease.spec.renew_time)
    except ValueError:
        # Missing, or after the year 9999: any user can create a Lease of this name, and it must do no harm.
        return False
    valid = timedelta(seconds=lease.spec.lease_duration_seconds) + _CLOCK_DIFFERENCE
    # Not `now < renewed + valid`, which overflows for a renewal in the year 9999.
    return bool(lease.spec.holder_identity) and now - renewed < valid


def with_other_driver(partition: NVLinkPartition, found: Sequence[str], now: datetime) -> NVLinkPartition:
    """The partition with its condition. The condition is added when another driver is found, and then stays."""
    conditions = partition.status.conditions
    if not found and find_condition(conditions, OTHER_DRIVER) is None:
        return partition
    explanation = nodereasons.other_driver_present(found=found) if found else nodereasons.no_other_driver()
    conditions = with_condition(
        conditions,
        OTHER_DRIVER,
        status=bool(found),
        reason=explanation.reason,
        message=explanation.message(),
        now=now,
    )
    return structs.replace(partition, status=structs.replace(partition.status, conditions=conditions))


class OtherDriverGuard:
    def __init__(self, client: Client, identity: str, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._backoff = Backoff(0.2, 10.0)
        self._events = EventRecorder(client, identity, clock)
        self._daemon_sets: Store[DaemonSet] = Store()
        self._leases: tuple[Store[Lease], ...] = tuple(Store() for _ in _LEASE_NAMES)
        self._slices: Store[ResourceSlice] = Store()
        self._changed = asyncio.Event()
        self._daemon_sets.subscribe(self._on_change)
        self._slices.subscribe(self._on_change)
        for store in self._leases:
            store.subscribe(self._on_change)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the work until another driver appears. Raises OtherDriver, after the work has stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            reflectors = self._reflectors()
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            found = self._find()
            if not found:
                # Nodes publish devices again when the condition is gone.
                await self._clear_conditions()
                working = group.create_task(work())
                found = await self._until_found()
                # The work ends before the report: nothing of it may be written after the conditions.
                working.cancel()
                await asyncio.wait({working})
            await self._report(found)
            raise OtherDriver(nodereasons.other_driver_present(found=found).message())

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        self._changed.set()

    async def _clear_conditions(self) -> None:
        failures = 0
        while True:
            try:
                await self._write_conditions(())
                return
            except ImexError as error:
                failures += 1
                log.warning("cannot clear the condition OtherDriver", error=str(error))
                await asyncio.sleep(self._backoff.delay(failures))

    def _reflectors(self) -> list[Reflector[Any]]:
        # The selector leaves our own slices to the API server: normally this watch delivers nothing.
        foreign = Selection(fields=f"spec.driver={DRIVER}", labels=f"{MANAGED_BY_LABEL}!={MANAGED_BY}")
        return [
            Reflector(self._client, DAEMON_SETS, self._daemon_sets),
            Reflector(self._client, RESOURCE_SLICES, self._slices, selection=foreign),
            *(
                Reflector(self._client, LEASES, store, selection=Selection(fields=f"metadata.name={name}"))
                for name, store in zip(_LEASE_NAMES, self._leases, strict=True)
            ),
        ]

    def _find(self) -> list[str]:
        leases = [lease for store in self._leases for lease in store.values()]
        return find_other_driver(self._daemon_sets.values(), leases, self._slices.values(), self._clock.now())

    async def _until_found(self) -> list[str]:
        while not (found := self._find()):
            self._record_nodes()
            await self._changed.wait()
            self._changed.clear()
        return found

    def _record_nodes(self) -> None:
        """A foreign slice that is no proof for the cluster still stops `imex node` on its node."""
        by_node = sorted(self._slices.values(), key=lambda found: (found.spec.node_name, found.metadata.name))
        for node, slices in groupby(by_node, key=lambda found: found.spec.node_name):
            first, *others = slices
            names = [found.metadata.name for found in (first, *others)]
            self._warn(RESOURCE_SLICES, first, nodereasons.other_driver_on_node(node=node, slices=names))

    async def _report(self, found: Sequence[str]) -> None:
        """An error here must not hide what was found: it is logged, and the program ends all the same."""
        explanation = nodereasons.other_driver_present(found=found)
        try:
            for partition in await self._write_conditions(found):
                self._warn(NVLINK_PARTITIONS, partition, explanation)
            # A cluster may have no partition yet, but the process that runs the guard holds the Lease.
            lease = await self._client.get(LEASES, Key(self._namespace, LEASE))
            self._warn(LEASES, lease, explanation)
        except ImexError as error:
            log.warning("cannot report the other driver", error=str(error))
        await self._events.flush()

    def _warn(self, resource: Resource[Any], obj: Object, explanation: Explanation) -> None:
        self._events.warn(resource, obj, explanation.reason, explanation.message())

    async def _write_conditions(self, found: Sequence[str]) -> list[NVLinkPartition]:
        return [
            await patch_changes(
                self._client,
                NVLINK_PARTITIONS,
                partition,
                with_other_driver(partition, found, self._clock.now()),
                subresource="status",
            )
            # One that cannot be decoded keeps its condition, and must not keep the controller from starting.
            for partition in await self._client.list_decodable(NVLINK_PARTITIONS)
        ]
