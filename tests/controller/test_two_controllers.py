"""Two `imex controller` processes on a real API server: leaders are killed while ComputeDomains come and go."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from imex_dra.api.nvlinkpartition import ChannelState
from imex_dra.base.errors import NotFound
from imex_dra.controller.leader import WORKERS as WORKERS_OF_EACH_KIND
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.process import Process
from tests.controller.cluster import Cluster
from tests.controller.processes import CONTROLLERS, AnsweringNodes, controller, lease_holder
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(500)]

TAKEOVER = 15 + 2 + 60
"""Seconds until the Lease expires, until a candidate tries again, and for what a busy machine needs to work."""

WORKERS = 2 * WORKERS_OF_EACH_KIND + 2
"""Reconciles that a leader runs at the same time: of partitions, ComputeDomains, nodes and claims."""

USERS = 3
CHANNELS = 9
"""Channel 0 is not assigned. The others are fewer than the ComputeDomains of this test, so they are reused."""


class Change(NamedTuple):
    at: datetime
    user: str


class Controllers:
    """Two processes, each with a user of its own."""

    def __init__(self, control_plane: ControlPlane, cluster: Cluster, directory: Path) -> None:
        self._control_plane, self._cluster = control_plane, cluster
        self._since = datetime.now(UTC)
        self.processes: dict[str, Process] = {
            user: controller(control_plane.kubeconfig(user), directory / f"{user}.log") for user in CONTROLLERS
        }

    def start(self) -> None:
        for process in self.processes.values():
            if not process.running:
                process.start()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill(signal.SIGCONT)
            process.stop()

    async def leader(self) -> str:
        """The user of the process that holds the Lease; empty if it is not known or not alive."""
        holder = await lease_holder(self._cluster)
        for user, process in self.processes.items():
            if holder and process.running and f'"{holder}"' in process.log.read_text():
                return user
        return ""

    async def until_led_by_another(self, previous: str) -> str:
        async def taken_over() -> str:
            now = await self.leader()
            return now if now != previous else ""

        return await until_async(taken_over, within=TAKEOVER, what=f"a leader other than {previous or 'none'}")

    def changes(self) -> list[Change]:
        """The successful writes since this object was created, in order."""
        text = self._control_plane.audit_log.read_text()
        # The last line may be incomplete.
        events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        found = [
            Change(datetime.fromisoformat(event["stageTimestamp"]), event["user"]["username"])
            for event in events
            if event["user"]["username"] in CONTROLLERS
            and event["verb"] in ("create", "patch", "delete")
            and event["objectRef"]["resource"] not in ("leases", "events")
            and event["responseStatus"]["code"] < 300
        ]
        return sorted(change for change in found if change.at > self._since)


class Users:
    """Each user creates a ComputeDomain with a claim per node, waits for its channel, and deletes everything."""

    def __init__(self, cluster: Cluster, nodes: list[str]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._numbers = count()
        self._stopping = False
        self.served = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(USERS):
                group.create_task(self._work())
            try:
                yield
            finally:
                self._stopping = True

    async def _work(self) -> None:
        while not self._stopping:
            await self._one_job(f"job-{next(self._numbers)}")

    async def _one_job(self, name: str) -> None:
        cluster = self._cluster
        domain = await cluster.create_domain(name)
        claims = [
            await cluster.create_claim(domain, node, pod=f"{name}-{index}")
            for index, node in enumerate(self._nodes)
        ]
        await until_async(lambda: self._has_channel(domain.metadata.uid), within=TAKEOVER, what=f"{name}: channel")
        await until_async(lambda: cluster.has_template(name), within=TAKEOVER, what=f"{name}: template")
        self.served += 1
        for claim in claims:
            await cluster.delete_claim(claim)
        await cluster.delete_domain(name)
        await until_async(lambda: self._is_gone(name), within=TAKEOVER, what=f"{name}: deleted")

    async def _has_channel(self, uid: str) -> bool:
        try:
            channels = (await self._cluster.live_partition()).status.channels
        except NotFound:
            return False
        own = [e for e in channels if e.compute_domain.uid == uid and e.state is ChannelState.ASSIGNED]
        assert len(own) <= 1, f"{uid} has {len(own)} channels"
        return bool(own)

    async def _is_gone(self, name: str) -> bool:
        return name not in await self._cluster.domains()


async def test_every_compute_domain_is_served_and_no_channel_is_shared_while_leaders_die(
    controllers_cluster: Cluster, controllers_plane: ControlPlane, tmp_path: Path
) -> None:
    cluster = controllers_cluster
    names = [await cluster.create_node(node) for node in ("a", "b")]
    nodes, users = AnsweringNodes(cluster, channel_count=CHANNELS), Users(cluster, names)
    controllers = Controllers(controllers_plane, cluster, tmp_path)

    async def until_served(more: int) -> None:
        goal = users.served + more
        await until_async(lambda: users.served >= goal, within=2 * TAKEOVER, what=f"{goal} ComputeDomains served")

    late: list[Change] = []
    controllers.start()
    try:
        async with nodes.running(*names), users.running():
            leader = await controllers.until_led_by_another("")
            leaders = [leader]
            for sent in (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                await until_served(2 * USERS)
                former, process = leader, controllers.processes[leader]
                process.kill(sent)
                leader = await controllers.until_led_by_another(former)
                leaders.append(leader)
                # A leader that was stopped for longer than its Lease wakes up beside the next one, and must end.
                woken = datetime.now(UTC)
                process.kill(signal.SIGCONT)
                await asyncio.to_thread(process.wait, within=60)
                assert not process.running
                late += [c for c in controllers.changes() if c.user == former and c.at > woken]
                controllers.start()
            await until_served(2 * USERS)
    finally:
        controllers.stop()
    assert nodes.violations == []
    assert len({channel for channel, _ in nodes.used}) < len(nodes.used), "no channel was reused"
    # A write that a stopped leader had begun may still succeed, if its object did not change meanwhile.
    assert len(late) <= WORKERS
    timely = [change.user for change in controllers.changes() if change not in late]
    assert [user for user, _ in groupby(timely)] == leaders
    assert (await cluster.domains()) == {}
