"""A real `imex controller` against a real API server that has the objects of a fleet, but no kubelets."""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bench.fleet import Fleet
from bench.loader import load
from bench.plainclient import KINDS
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain, Readiness
from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import LEASE, NAMESPACE
from imex_dra.api.nvlinknode import NVLINK_NODES, ImexState, NVLinkNode
from imex_dra.api.views import LEASES
from imex_dra.base.errors import NotFound
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.process import Process
from tests.controller.processes import CONTROLLERS, control_plane_for_controllers
from tests.waiting import until_async

LIMIT = 1200.0
"""Seconds for one step, on a machine that is busy."""

QUIET = 4.0
"""Seconds without a write of the controller after which it is at rest: it gathers changes for up to 3 s."""

_WRITES = {"create", "update", "patch", "delete"}
_WRITTEN = {"computedomains", "nvlinkpartitions", "resourceclaimtemplates", "nodes"}
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from imex_dra.cli import main; main()"
"""An image does not have rich, which is for terminals. structlog would load it."""


class Cluster:
    """The control plane with the fleet, seen by this process."""

    def __init__(self, control_plane: ControlPlane, fleet: Fleet, client: Client) -> None:
        self.control_plane, self.fleet, self.client = control_plane, fleet, client
        self.domains: Store[ComputeDomain] = Store()
        self.nvlink_nodes: Store[NVLinkNode] = Store()
        self._log_position = 0
        self._log_rest = b""
        self._writes: list[dict[str, Any]] = []
        self._users: set[str] = set()

    @property
    def changeable(self) -> dict[str, list[Key]]:
        """The nodes with a claim, and the ComputeDomains of these claims."""
        found: dict[str, list[Key]] = {}
        owners = {domain.metadata.uid: key_of(domain) for domain in self.fleet.domains}
        for claim in self.fleet.claims:
            for node, uid in itertools.product(claim.nodes, claim.domain_uids):
                found.setdefault(node, []).append(owners[uid])
        return found

    def is_correct(self) -> bool:
        """Whether every ComputeDomain says that its nodes are ready, and has a channel."""
        summaries = [domain.status.summary for domain in self.domains.values()]
        ready = sum(summary.nodes == "4/4" and summary.channels != "" for summary in summaries)
        return ready == len(self.fleet.domains)

    async def set_daemon(self, node: str, state: ImexState) -> None:
        patch = {"status": {"imexState": state.value}}
        await self.client.patch(NVLINK_NODES, Key("", node), patch, subresource="status")

    def all_show(self, domains: Iterable[Key], node: str, readiness: Readiness) -> bool:
        found = [self.domains.get(domain) for domain in domains]
        entries = [{entry.name: entry.status for entry in domain.status.nodes} for domain in found if domain]
        return all(statuses.get(node) is readiness for statuses in entries)

    def writes(self, user: str) -> list[dict[str, Any]]:
        """Write requests in the audit log, without Events, Leases and questions about permissions."""
        with self.control_plane.audit_log.open("rb") as log:
            log.seek(self._log_position)
            *lines, self._log_rest = (self._log_rest + log.read()).split(b"\n")
            self._log_position = log.tell()
        entries = [json.loads(line) for line in lines if line]
        self._users |= {entry["user"]["username"] for entry in entries}
        self._writes += filter(_is_write, entries)
        return [entry for entry in self._writes if entry["user"]["username"] == user]

    def has_seen(self, user: str) -> bool:
        """Whether the API server has answered a request of this user."""
        return bool(self.writes(user)) or user in self._users

    async def rest(self, user: str) -> int:
        """Waits until the controller no longer writes; returns the number of its writes so far."""
        count, since = len(self.writes(user)), time.monotonic()
        while time.monotonic() - since < QUIET:
            await asyncio.sleep(0.2)
            if (now := len(self.writes(user))) != count:
                count, since = now, time.monotonic()
        return count


def _is_write(entry: dict[str, Any]) -> bool:
    return entry["verb"] in _WRITES and entry.get("objectRef", {}).get("resource") in _WRITTEN


@contextmanager
def control_plane_with(fleet: Fleet, directory: Path) -> Iterator[ControlPlane]:
    with control_plane_for_controllers(directory / "control-plane") as control_plane:
        load(control_plane, fleet)
        yield control_plane


@asynccontextmanager
async def observed(control_plane: ControlPlane, fleet: Fleet) -> AsyncIterator[Cluster]:
    client = Client.connect("imex-bench", control_plane.kubeconfig())
    cluster = Cluster(control_plane, fleet, client)
    reflectors = (
        Reflector(client, COMPUTE_DOMAINS, cluster.domains),
        Reflector(client, NVLINK_NODES, cluster.nvlink_nodes),
    )
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
    for reflector in reflectors:
        await reflector.synced.wait()
    await _warm_up(client)
    try:
        yield cluster
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close()


async def _warm_up(client: Client) -> None:
    """The API server fills its watch cache of a kind when somebody first asks for it."""
    for resource in KINDS:
        reflector = Reflector(client, resource, Store())
        task = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        task.cancel()
        await asyncio.wait({task})


def controller(control_plane: ControlPlane, number: int, directory: Path) -> Process:
    words = [sys.executable, "-c", WITHOUT_RICH, "controller", "--metrics-address=127.0.0.1:0"]
    words.append(f"--kubeconfig={control_plane.kubeconfig(CONTROLLERS[number])}")
    return Process("imex controller", words, log=directory / f"controller-{number}.log")


def plain_client(control_plane: ControlPlane, directory: Path) -> Process:
    words = [sys.executable, "-m", "bench.plainclient", str(control_plane.kubeconfig())]
    return Process("plain client", words, log=directory / "plain-client.log")


async def seconds_to_list(plain: Process) -> float:
    await until_async(lambda: plain.log.read_text().strip(), within=LIMIT, what="the plain client has listed all")
    return float(plain.log.read_text())


async def lease_holder(client: Client) -> str:
    try:
        return (await client.get(LEASES, Key(NAMESPACE, LEASE))).spec.holder_identity
    except NotFound:
        return ""


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: Process) -> float:
    """In MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Changes:
    """Daemons that stop and start again all over the cluster, and the time until each status shows it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = cluster.changeable
        self._pending: dict[tuple[Key, str], tuple[float, Readiness]] = {}
        self._sent: dict[str, tuple[float, ImexState]] = {}
        self.status_lags: list[float] = []
        self.watch_lags: list[float] = []
        cluster.domains.subscribe(self._domain_changed)
        cluster.nvlink_nodes.subscribe(self._nvlink_node_changed)

    async def run(self, *, count: int, rate: float) -> int:
        """About `count` changes: a node stops in one round, and starts in the next. The nodes of a rack do not
        follow each other. Returns the number of changes.
        """
        names = sorted(self._nodes, key=lambda name: name.rpartition("n")[::-1])[: count // 2]
        rounds = max(1, round(count / len(names) / 2)) * (ImexState.INITIALIZING, ImexState.READY)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, (state, name) in enumerate(itertools.product(rounds, names)):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                group.create_task(self._change(name, state))
        await until_async(lambda: not self._pending, within=LIMIT, what="every status shows its nodes")
        return len(rounds) * len(names)

    async def _change(self, node: str, state: ImexState) -> None:
        readiness = Readiness.READY if state is ImexState.READY else Readiness.NOT_READY
        now = time.monotonic()
        self._sent[node] = now, state
        for domain in self._nodes[node]:
            undone = self._pending.pop((domain, node), None)
            if undone is not None:
                # No status has shown it, and none will: it took at least this long.
                self.status_lags.append(now - undone[0])
            if not self._cluster.all_show([domain], node, readiness):
                self._pending[domain, node] = now, readiness
        await self._cluster.set_daemon(node, state)

    def _domain_changed(self, old: ComputeDomain | None, new: ComputeDomain | None) -> None:
        for entry in new.status.nodes if new else ():
            assert new is not None
            sent = self._pending.get((key_of(new), entry.name))
            if sent is not None and entry.status is sent[1]:
                self.status_lags.append(time.monotonic() - sent[0])
                del self._pending[key_of(new), entry.name]

    def _nvlink_node_changed(self, old: NVLinkNode | None, new: NVLinkNode | None) -> None:
        sent = self._sent.get(new.metadata.name) if new else None
        if new is not None and sent is not None and new.status.imex_state is sent[1]:
            self.watch_lags.append(time.monotonic() - sent[0])
            del self._sent[new.metadata.name]
