"""A pod's claims, prepared and given back by the node's drivers.

The order is the real kubelet's: look everything up first, so that a pod which can't start leaves no trace; enter
all claims; then one call per driver with all of the pod's claims that need it; the first error ends the attempt.
A claim of several pods is prepared with the first and given back with the last.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress

import structlog

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS, ResourceClaim
from imex_dra.base.errors import ImexError, NotYet
from imex_dra.dra.proto import dra_pb2
from imex_dra.kube.client import Client
from imex_dra.sandbox.kubelet.health import DeviceKey
from imex_dra.sandbox.kubelet.ledger import Device, DriverState, Entry, Ledger
from imex_dra.sandbox.kubelet.plugins import Plugin, Plugins
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod, PodClaim

log = structlog.get_logger()


class Claims:
    def __init__(self, client: Client, plugins: Plugins, ledger: Ledger) -> None:
        self._client = client
        self._plugins = plugins
        self._ledger = ledger

    async def prepare(self, pod: Pod) -> None:
        """Raises ImexError with the words of the real kubelet."""
        claims = [await self._look_up(pod, name) for name in claim_names(pod)]
        plugins = {driver: self._plugins.get(driver) for claim in claims for driver in drivers_of(claim)}
        entries = [self._enter(pod, claim) for claim in claims]
        open_entries = [entry for entry in entries if not self._ledger.is_prepared(entry)]
        for driver, plugin in plugins.items():
            batch = [entry for entry in open_entries if driver in entry.driver_state]
            if batch:
                await self._prepare(plugin, batch)
        for entry in open_entries:
            self._ledger.mark_prepared(entry)
        self._ledger.save()

    async def unprepare(self, pod: Pod) -> None:
        await self._unprepare(pod.uid, pod.metadata.namespace, claim_names(pod))

    async def reconcile(self, active: set[str]) -> None:
        """Gives back what pods held that nobody knows any more."""
        for pod, namespace in sorted({(p, e.namespace) for e in self._ledger.entries() for p in e.pods}):
            if pod in active:
                continue
            names = [e.claim_name for e in self._ledger.entries() if pod in e.pods and e.namespace == namespace]
            try:
                await self._unprepare(pod, namespace, names)
            except ImexError as error:
                log.warning("claims of a pod that is gone were not unprepared", pod=pod, error=str(error))

    def cdi_devices(self, pod: Pod, container: Container) -> list[str]:
        """In the order of the pod's claims; a container gets what it lists, and nothing else."""
        devices: dict[str, None] = {}
        for claim in pod.spec.resource_claims:
            entry = self._ledger.get(pod.metadata.namespace, claim_name(pod, claim) or "")
            if entry is not None:
                requests = [wanted.request for wanted in container.resources.claims if wanted.name == claim.name]
                devices |= dict.fromkeys(name for request in requests for name in entry.cdi_devices(request))
        return list(devices)

    def allocated(self, pod: Pod, container: Container) -> list[tuple[str, list[tuple[str, Device]]]]:
        """The devices of each claim that the container lists, with their drivers."""
        found = []
        for wanted in container.resources.claims:
            entry = self._entry(pod, wanted.name)
            if entry is not None and (devices := entry.devices(wanted.request)):
                name = f"claim:{wanted.name}/{wanted.request}" if wanted.request else f"claim:{wanted.name}"
                found.append((name, devices))
        return found

    def _entry(self, pod: Pod, claim: str) -> Entry | None:
        of = next((each for each in pod.spec.resource_claims if each.name == claim), None)
        with suppress(NotYet):
            return self._ledger.get(pod.metadata.namespace, claim_name(pod, of) or "") if of else None
        return None

    def pods_with(self, devices: Collection[DeviceKey]) -> set[str]:
        """UIDs of those that hold one of these."""
        return {
            pod
            for entry in self._ledger.entries()
            if any(DeviceKey(d, e.pool_name, e.device_name) in devices for d, e in entry.devices())
            for pod in entry.pods
        }

    async def _look_up(self, pod: Pod, name: str) -> ResourceClaim:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, Key(pod.metadata.namespace, name))
        except ImexError as error:
            raise NotYet(f"fetch ResourceClaim {name}: {error}") from error
        if not any(user.uid == pod.uid for user in claim.status.reserved_for):
            raise NotYet(
                f"pod {pod.metadata.name} ({pod.uid}) is not allowed to use ResourceClaim {name} "
                f"({claim.metadata.uid})"
            )
        if claim.status.allocation is None:
            raise NotYet(f"ResourceClaim {name}: not allocated")
        return claim

    def _enter(self, pod: Pod, claim: ResourceClaim) -> Entry:
        meta = claim.metadata
        states = {driver: DriverState() for driver in drivers_of(claim)}
        entry = self._ledger.enter(Entry(meta.uid, meta.name, meta.namespace, driver_state=states), pod.uid)
        self._ledger.save()
        return entry

    async def _prepare(self, plugin: Plugin, entries: list[Entry]) -> None:
        answer = await plugin.prepare(_wire(entries))
        known = {entry.claim_uid: entry for entry in entries}
        for uid, result in answer.claims.items():
            if uid not in known:
                raise NotYet(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if result.error:
                name = known[uid].claim_name
                raise NotYet(f"NodePrepareResources failed for ResourceClaim {name}: {result.error}")
            known[uid].driver_state[plugin.driver].devices = [_device(device) for device in result.devices]
        if unfinished := len(entries) - len(answer.claims):
            raise NotYet(f"NodePrepareResources skipped {unfinished} ResourceClaims")

    async def _unprepare(self, pod: str, namespace: str, names: Iterable[str]) -> None:
        held = [entry for name in names if (entry := self._ledger.get(namespace, name))]
        last = [entry for entry in held if not entry.pods.keys() - {pod}]
        for entry in held:
            if entry not in last:
                entry.pods.pop(pod, None)
        for driver in dict.fromkeys(driver for entry in last for driver in entry.driver_state):
            batch = [entry for entry in last if driver in entry.driver_state]
            await self._give_back(self._plugins.get(driver), batch)
        for entry in last:
            self._ledger.forget(entry)
        if held:
            self._ledger.save()

    async def _give_back(self, plugin: Plugin, entries: list[Entry]) -> None:
        answer = await plugin.unprepare(_wire(entries))
        names = {entry.claim_uid: entry.claim_name for entry in entries}
        for uid, result in answer.claims.items():
            if uid not in names:
                raise NotYet(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
            if result.error:
                raise NotYet(f"NodeUnprepareResources failed for ResourceClaim {names[uid]}: {result.error}")
        if unfinished := len(entries) - len(answer.claims):
            raise NotYet(f"NodeUnprepareResources skipped {unfinished} ResourceClaims")


def claim_name(pod: Pod, claim: PodClaim) -> str | None:
    """None if the pod needs none; a claim made from a template is named in the pod's status."""
    if claim.resource_claim_name:
        return claim.resource_claim_name
    for status in pod.status.resource_claim_statuses:
        if status.name == claim.name:
            return status.resource_claim_name
    raise NotYet(f'pod "{pod.metadata.namespace}/{pod.metadata.name}": ResourceClaim not created yet')


def drivers_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Each once, in the order of the allocation."""
    allocation = claim.status.allocation
    return tuple(dict.fromkeys(result.driver for result in allocation.devices.results)) if allocation else ()


def claim_names(pod: Pod) -> list[str]:
    return [name for claim in pod.spec.resource_claims if (name := claim_name(pod, claim))]


def _wire(entries: list[Entry]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=e.namespace, uid=e.claim_uid, name=e.claim_name) for e in entries]


def _device(device: dra_pb2.Device) -> Device:
    return Device(device.pool_name, device.device_name, list(device.request_names), list(device.cdi_device_ids))
