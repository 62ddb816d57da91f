"""The DRA manager: has the claims of pods prepared and unprepared by the node's DRA plugins.

The order of a prepare is that of the real kubelet: fetch and check all claims first, so that a pod that cannot
start leaves no trace; save all claims to the checkpoint; then call each driver once with all of the pod's claims
that it must prepare. The first error ends the attempt. A claim that several pods share is prepared for the first
and unprepared after the last.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress

import structlog

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS, ResourceClaim
from imex_dra.base.errors import ImexError, NotYet
from imex_dra.dra.proto import dra_pb2
from imex_dra.kube.client import Client
from imex_sandbox.kubelet.checkpoint import ClaimCheckpoint, ClaimInfo, Device, DriverState
from imex_sandbox.kubelet.devicehealth import DeviceHealthCache, DeviceKey
from imex_sandbox.kubelet.plugins import DraPlugin, DraPlugins
from imex_sandbox.kubelet.podstate import Json
from imex_sandbox.kubelet.views.pod import Container, Pod, PodClaim

log = structlog.get_logger()


class DraManager:
    def __init__(
        self, client: Client, plugins: DraPlugins, checkpoint: ClaimCheckpoint, health: DeviceHealthCache
    ) -> None:
        self._client = client
        self._plugins = plugins
        self._checkpoint = checkpoint
        self._health = health

    async def prepare(self, pod: Pod) -> None:
        """Raises ImexError with the message of the real kubelet."""
        claims = [await self._fetch(pod, name) for name in claim_names(pod)]
        plugins = {driver: self._plugins.get(driver) for claim in claims for driver in drivers_of(claim)}
        infos = [self._add_to_checkpoint(pod, claim) for claim in claims]
        unprepared = [info for info in infos if not self._checkpoint.is_prepared(info)]
        for driver, plugin in plugins.items():
            batch = [info for info in unprepared if driver in info.driver_state]
            if batch:
                await self._call_prepare(plugin, batch)
        for info in unprepared:
            self._checkpoint.mark_prepared(info)
        self._checkpoint.save()

    async def unprepare(self, pod: Pod) -> None:
        await self._unprepare(pod.uid, pod.metadata.namespace, claim_names(pod))

    async def reconcile(self, existing_pods: set[str]) -> None:
        """Unprepares the claims of pods that do not exist any more; the set holds pod UIDs."""
        users = {(pod, info.namespace) for info in self._checkpoint.claims() for pod in info.pods}
        for pod, namespace in sorted(users):
            if pod in existing_pods:
                continue
            infos = [info for info in self._checkpoint.claims() if pod in info.pods]
            names = [info.claim_name for info in infos if info.namespace == namespace]
            try:
                await self._unprepare(pod, namespace, names)
            except ImexError as error:
                log.warning("cannot unprepare the claims of a deleted pod", pod=pod, error=str(error))

    def cdi_devices(self, pod: Pod, container: Container) -> list[str]:
        """CDI devices of the claims that the container lists, in the order of the pod's claims."""
        devices: dict[str, None] = {}
        for claim in pod.spec.resource_claims:
            info = self._checkpoint.get(pod.metadata.namespace, claim_name(pod, claim) or "")
            if info is not None:
                requests = [listed.request for listed in container.resources.claims if listed.name == claim.name]
                devices |= dict.fromkeys(name for request in requests for name in info.cdi_devices(request))
        return list(devices)

    def allocated_resources_status(self, pod: Pod) -> dict[str, list[Json]]:
        """The health of the devices of each container that lists a claim, by container name."""
        claiming = [container for container in pod.spec.containers if container.resources.claims]
        return {
            container.name: [
                self._health.resource_status(name, devices) for name, devices in self._devices(pod, container)
            ]
            for container in claiming
        }

    def pods_using(self, devices: Collection[DeviceKey]) -> set[str]:
        """UIDs of the pods that use any of these devices."""
        return {
            pod
            for info in self._checkpoint.claims()
            if any(DeviceKey(driver, d.pool_name, d.device_name) in devices for driver, d in info.devices())
            for pod in info.pods
        }

    def _devices(self, pod: Pod, container: Container) -> list[tuple[str, list[tuple[str, Device]]]]:
        """Resource name and (driver, device) pairs of each claim that the container lists."""
        found = []
        for listed in container.resources.claims:
            info = self._claim_info(pod, listed.name)
            if info is not None and (devices := info.devices(listed.request)):
                name = f"claim:{listed.name}/{listed.request}" if listed.request else f"claim:{listed.name}"
                found.append((name, devices))
        return found

    def _claim_info(self, pod: Pod, name: str) -> ClaimInfo | None:
        claim = next((claim for claim in pod.spec.resource_claims if claim.name == name), None)
        with suppress(NotYet):
            return self._checkpoint.get(pod.metadata.namespace, claim_name(pod, claim) or "") if claim else None
        return None

    async def _fetch(self, pod: Pod, name: str) -> ResourceClaim:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, Key(pod.metadata.namespace, name))
        except ImexError as error:
            raise NotYet(f"fetch ResourceClaim {name}: {error}") from error
        if not any(consumer.uid == pod.uid for consumer in claim.status.reserved_for):
            raise NotYet(
                f"pod {pod.metadata.name} ({pod.uid}) is not allowed to use ResourceClaim {name} "
                f"({claim.metadata.uid})"
            )
        if claim.status.allocation is None:
            raise NotYet(f"ResourceClaim {name}: not allocated")
        return claim

    def _add_to_checkpoint(self, pod: Pod, claim: ResourceClaim) -> ClaimInfo:
        meta = claim.metadata
        states = {driver: DriverState() for driver in drivers_of(claim)}
        info = self._checkpoint.add(ClaimInfo(meta.uid, meta.name, meta.namespace, driver_state=states), pod.uid)
        self._checkpoint.save()
        return info

    async def _call_prepare(self, plugin: DraPlugin, claims: list[ClaimInfo]) -> None:
        response = await plugin.prepare(_wire(claims))
        known = {claim.claim_uid: claim for claim in claims}
        for uid, result in response.claims.items():
            if uid not in known:
                raise NotYet(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if result.error:
                name = known[uid].claim_name
                raise NotYet(f"NodePrepareResources failed for ResourceClaim {name}: {result.error}")
            known[uid].driver_state[plugin.driver].devices = [_device(device) for device in result.devices]
        if skipped := len(claims) - len(response.claims):
            raise NotYet(f"NodePrepareResources skipped {skipped} ResourceClaims")

    async def _unprepare(self, pod: str, namespace: str, names: Iterable[str]) -> None:
        claims = [claim for name in names if (claim := self._checkpoint.get(namespace, name))]
        unused = [claim for claim in claims if not claim.pods.keys() - {pod}]
        for claim in claims:
            if claim not in unused:
                claim.pods.pop(pod, None)
        # The last pod stays in the checkpoint until the drivers succeed: otherwise no retry would find the claim.
        for driver in dict.fromkeys(driver for claim in unused for driver in claim.driver_state):
            batch = [claim for claim in unused if driver in claim.driver_state]
            await self._call_unprepare(self._plugins.get(driver), batch)
        for claim in unused:
            self._checkpoint.remove(claim)
        if claims:
            self._checkpoint.save()

    async def _call_unprepare(self, plugin: DraPlugin, claims: list[ClaimInfo]) -> None:
        response = await plugin.unprepare(_wire(claims))
        names = {claim.claim_uid: claim.claim_name for claim in claims}
        for uid, result in response.claims.items():
            if uid not in names:
                raise NotYet(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
            if result.error:
                raise NotYet(f"NodeUnprepareResources failed for ResourceClaim {names[uid]}: {result.error}")
        if skipped := len(claims) - len(response.claims):
            raise NotYet(f"NodeUnprepareResources skipped {skipped} ResourceClaims")


def claim_names(pod: Pod) -> list[str]:
    return [name for claim in pod.spec.resource_claims if (name := claim_name(pod, claim))]


def claim_name(pod: Pod, claim: PodClaim) -> str | None:
    """None if no claim is needed; the name of a claim created from a template is in the pod's status."""
    if claim.resource_claim_name:
        return claim.resource_claim_name
    for status in pod.status.resource_claim_statuses:
        if status.name == claim.name:
            return status.resource_claim_name
    raise NotYet(f'pod "{pod.metadata.namespace}/{pod.metadata.name}": ResourceClaim not created yet')


def drivers_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Without duplicates, in the order of the allocation."""
    allocation = claim.status.allocation
    return tuple(dict.fromkeys(result.driver for result in allocation.devices.results)) if allocation else ()


def _wire(claims: list[ClaimInfo]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=c.namespace, uid=c.claim_uid, name=c.claim_name) for c in claims]


def _device(device: dra_pb2.Device) -> Device:
    return Device(device.pool_name, device.device_name, list(device.request_names), list(device.cdi_device_ids))
