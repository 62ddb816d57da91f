"""Real `imex controller` processes and nodes that answer them, on a control plane without other objects."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from imex_dra.api.meta import Key
from imex_dra.api.names import LEASE, NAMESPACE
from imex_dra.api.nvlinknode import HeldChannel
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, ChannelState
from imex_dra.api.views import LEASES, RESOURCE_CLAIMS
from imex_dra.base.errors import NotFound, Rejected
from imex_dra.kube.client import Selection
from imex_sandbox.kubernetes import driver
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.process import Process
from tests.conftest import install_crds
from tests.controller.cluster import Cluster
from tests.paths import DEPLOY
from tests.waiting import until

CONTROLLERS = ("controller-a", "controller-b")
"""Users with the permissions of the controller, so that the audit log tells two processes apart."""


@contextmanager
def control_plane_for_controllers(directory: Path) -> Iterator[ControlPlane]:
    users = {name: ["controllers"] for name in CONTROLLERS}
    with ControlPlane(directory, users=users, scheduler=False, controller_manager=False) as running:
        install_crds(running)
        running.kubectl("apply", "-f", str(DEPLOY / "rbac.yaml"))
        name, group = "imex-controller", "--group=controllers"
        running.kubectl("create", "clusterrolebinding", "controllers", f"--clusterrole={name}", group)
        running.kubectl("create", "rolebinding", "controllers", "-n", NAMESPACE, f"--role={name}", group)
        # The API server loads RBAC rules in the background.
        access = ("auth", "can-i", "patch", "computedomains.resource.nvidia.com", "--quiet")
        until(lambda: all(_succeeds(Kubectl(running.kubeconfig(user)), *access) for user in CONTROLLERS))
        yield running


def _succeeds(kubectl: Kubectl, *words: str) -> bool:
    try:
        kubectl(*words)
    except Rejected:
        return False
    return True


def controller(kubeconfig: Path, log: Path) -> Process:
    return driver.controller(kubeconfig, log)


async def lease_holder(cluster: Cluster) -> str:
    try:
        return (await cluster.client.get(LEASES, Key(NAMESPACE, LEASE))).spec.holder_identity
    except NotFound:
        return ""


class AnsweringNodes:
    """Stands in for `imex node` on the nodes of a cluster.

    A node holds the channel of each claim on it as soon as the partition assigns one, until the claim is gone. It
    reads the partition, then takes channels, then acknowledges what it read: no grant from an earlier epoch is
    taken afterwards, as the fence of a real node ensures.
    """

    PERIOD = 0.1

    def __init__(self, cluster: Cluster, *, channel_count: int) -> None:
        self._cluster = cluster
        self._channel_count = channel_count
        self._held: dict[str, dict[str, HeldChannel]] = {}
        """By node and UID of the claim."""
        self.violations: list[str] = []
        self.used: set[tuple[int, str]] = set()
        """Every channel that was ever held, with its ComputeDomain."""

    @asynccontextmanager
    async def running(self, *nodes: str) -> AsyncIterator[None]:
        for node in nodes:
            self._held[node] = {}
            await self._cluster.report(node, channel_count=self._channel_count)
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), task.exception()

    async def _run(self) -> None:
        while True:
            for node in self._held:
                await self._answer(node)
            await asyncio.sleep(self.PERIOD)

    async def _answer(self, node: str) -> None:
        cluster = self._cluster
        claims = await cluster.client.list(RESOURCE_CLAIMS, Selection(cluster.namespace))
        own = {claim.metadata.uid: claim for claim in claims if node in claim.nodes}
        held = {uid: channel for uid, channel in self._held[node].items() if uid in own}
        try:
            status = (await cluster.client.get(NVLINK_PARTITIONS, Key("", cluster.partition))).status
        except NotFound:
            return
        for uid, claim in own.items():
            for entry in status.channels:
                owner = entry.compute_domain.uid
                if entry.state is ChannelState.ASSIGNED and owner in claim.domain_uids and uid not in held:
                    held[uid] = HeldChannel(cluster.partition, entry.channel, owner)
        self._held[node] = held
        self._check()
        is_member = node in {member.node for member in status.members}
        await cluster.report(
            node,
            channel_count=self._channel_count,
            acknowledged=status.epoch,
            applied=status.generation if is_member else 0,
            held=tuple(sorted(set(held.values()))),
        )

    def _check(self) -> None:
        """No two ComputeDomains hold one channel anywhere in the partition."""
        everywhere = {channel for held in self._held.values() for channel in held.values()}
        owners: dict[int, str] = {}
        for found in everywhere:
            self.used.add((found.channel, found.compute_domain))
            other = owners.setdefault(found.channel, found.compute_domain)
            if other != found.compute_domain:
                self.violations.append(f"channel {found.channel} is held by {other} and {found.compute_domain}")
