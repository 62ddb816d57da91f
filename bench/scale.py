"""What the controller costs from 18 to 10,000 nodes."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import structlog

from bench.controllerrun import (
    LIMIT,
    Changes,
    Cluster,
    control_plane_with,
    controller,
    cpu_seconds,
    lease_holder,
    observed,
    plain_client,
    resident,
    seconds_to_list,
)
from bench.curves import LAG, MEMORY, START, WRITES
from bench.fleet import Fleet, fleet
from bench.line import Line, line
from bench.statuspass import StatusPass, decode_all
from imex_dra.api.computedomain import Readiness
from imex_dra.api.nvlinknode import ImexState
from imex_dra.kube.lease import Timing
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.progress import Progress
from tests.controller.processes import CONTROLLERS
from tests.waiting import until_async

RACKS = {18: 1, 180: 10, 1_000: 56, 10_000: 556}
DOMAINS = {18: 10, 180: 100, 1_000: 500, 10_000: 5_000}
MEMORY_BUDGETS = {1_000: 60.0, 10_000: 300.0}
RELEASED = 500
PASSES = 3
RATE = 50.0
CHANGES = 1_000
NODE_PERIOD = 2.0
"""Seconds between two changes of one node: 18 nodes cannot change 50 times a second and be observed."""

SINGLE_CHANGES = 20
SINGLE_RATE = 1.0

SINGLE = "a single change of a node to the status of its ComputeDomains, slowest of 20"
CPU = "CPU time of the controller for a change"
FAILOVER = "leader killed to the next write of the other replica"


def status_pass(progress: Progress) -> Iterator[Line]:
    """Every NVLinkPartition and ComputeDomain is reconciled once, in memory, and nothing has to be written.

    10,008 nodes in 556 racks, 5,000 ComputeDomains with four pods each, and 500 released channels in each rack
    that cannot be reused, because a node has not acknowledged them. CPU time; median of three passes. The
    yardstick decodes the same objects once. The first pass writes all status, and does not count.
    """
    objects = fleet(RACKS[10_000], DOMAINS[10_000], released=RELEASED)
    progress.show("decoding")
    decoding = decode_all(objects)
    progress.show("first pass")
    with _warnings_only():
        times = asyncio.run(_passes(StatusPass(objects), progress))
    yield line(
        "full status pass, 10,008 nodes and 5,000 ComputeDomains",
        sorted(times)[len(times) // 2],
        "s",
        yardstick=decoding,
        yardstick_is="decoding the same objects",
        at_most=5.0,
    )


@contextmanager
def _warnings_only() -> Iterator[None]:
    """5,000 lines that say that a ComputeDomain is Ready would only be in the way."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.reset_defaults()


async def _passes(status_pass: StatusPass, progress: Progress) -> list[float]:
    await status_pass.run()
    ready = [domain for domain in status_pass.domains() if domain.status.status is Readiness.READY]
    assert len(ready) == DOMAINS[10_000], f"only {len(ready)} ComputeDomains are Ready"
    written, times = status_pass.client.writes, []
    for number in range(PASSES):
        progress.show(f"pass {number + 1}/{PASSES}")
        times.append(await status_pass.run())
    assert status_pass.client.writes == written, "a pass without changes has written"
    return times


def up_to_1000_nodes(progress: Progress) -> Iterator[Line]:
    """A real controller against a real API server with the objects of 18, 180 and 1,008 nodes in racks of 18, with
    10, 100 and 500 ComputeDomains of four pods each, and no kubelets.

    The objects are written to etcd. The first start lasts from the start of the process until a watch has shown
    that every ComputeDomain has a correct status; before that it gets a finalizer and a template. Then the daemon
    of one node stops, and starts when the status shows it; write requests are counted in the audit log, without
    Events. Then daemons stop and start all over the cluster: 20 times, once a second, and then about 1,000 times,
    50 times a second, but each node at most once in two seconds. A change lasts from before its request is sent
    until a watch of ComputeDomains shows it. The controller gathers changes for 0.6 s. With 50 changes a second
    both cores are busy, since the API server, etcd, the controller and the clients that measure share them; the
    yardstick shows this. Memory is measured then, without rich, which an image does not have. At last the leader
    is killed with SIGKILL while a second controller waits, and a daemon stops, so that there is something to
    write.

    Yardsticks: a client that lists and watches the same objects and keeps them as dicts; the watch event of the
    changed node; the writes of the node itself; and the duration of the Lease.
    """
    for nodes in (18, 180, 1_000):
        yield from _measured(nodes, progress)


def with_10000_nodes(progress: Progress) -> Iterator[Line]:
    """The same with 10,008 nodes and 5,000 ComputeDomains."""
    yield from _measured(10_000, progress)


BENCHMARKS = (status_pass, up_to_1000_nodes, with_10000_nodes)


class Figures(NamedTuple):
    start: float
    listing: float
    writes: int
    single: float
    single_watch: float
    lag: float
    watch_lag: float
    rate: float
    cpu: float
    plain_cpu: float
    memory: float
    plain_memory: float
    failover: float


def _measured(nodes: int, progress: Progress) -> Iterator[Line]:
    objects = fleet(RACKS[nodes], DOMAINS[nodes])
    with tempfile.TemporaryDirectory(prefix="imex-bench-") as name:
        directory = Path(name)
        progress.show(f"{nodes:,} nodes: loading the objects")
        with control_plane_with(objects, directory) as control_plane:
            run = Run(nodes, control_plane, directory, progress)
            try:
                with _warnings_only():
                    figures = asyncio.run(run.figures(objects))
            finally:
                run.stop()
    yield from lines(nodes, figures)


def lines(nodes: int, found: Figures) -> Iterator[Line]:
    plain = "a client that only lists and watches"
    for what, value, unit, yardstick, yardstick_is, budget in (
        (START, found.start, "s", found.listing, f"{plain}: its list", None),
        (SINGLE, found.single, "s", found.single_watch, "the slowest watch event of these nodes", 1.0),
        (LAG, found.lag, "s", found.watch_lag, "the watch event of the node", None),
        (MEMORY, found.memory, "MB", found.plain_memory, f"{plain}, and keeps dicts", MEMORY_BUDGETS.get(nodes)),
        (WRITES, found.writes, "requests", 2, "the writes of the node itself", None),
        (CPU, found.cpu * 1000, "ms", found.plain_cpu * 1000, plain, None),
        (FAILOVER, found.failover, "s", Timing().lease_duration, "duration of the Lease", None),
    ):
        rate = f" ({found.rate:g} changes/s)" if what == LAG else ""
        yield line(
            f"{nodes:,} nodes: {what}{rate}",
            value,
            unit,
            yardstick=yardstick,
            yardstick_is=yardstick_is,
            at_most=budget,
        )


class Run:
    """One size. The steps build on each other."""

    def __init__(self, nodes: int, control_plane: ControlPlane, directory: Path, progress: Progress) -> None:
        self._nodes, self._control_plane, self._progress = nodes, control_plane, progress
        self._plain = plain_client(control_plane, directory)
        self._leader = controller(control_plane, 0, directory)
        self._standby = controller(control_plane, 1, directory)

    def stop(self) -> None:
        for process in (self._leader, self._standby, self._plain):
            process.stop(within=0)

    async def figures(self, objects: Fleet) -> Figures:
        async with observed(self._control_plane, objects) as cluster:
            self._show("a client that only lists and watches")
            self._plain.start()
            listing = await seconds_to_list(self._plain)
            self._show("first start")
            start = await self._first_start(cluster)
            self._show("a daemon restarts")
            writes = await self._daemon_restart(cluster)
            self._show("single changes")
            single = Changes(cluster)
            await single.run(count=SINGLE_CHANGES, rate=SINGLE_RATE)
            self._show("changes")
            changes, rate, cpu, plain_cpu = await self._changes(cluster)
            memory, plain_memory = resident(self._leader), resident(self._plain)
            self._show("failover")
            failover = await self._failover(cluster)
        return Figures(
            start,
            listing,
            writes,
            max(single.status_lags),
            max(single.watch_lags),
            _p99(changes.status_lags),
            _p99(changes.watch_lags),
            rate,
            cpu,
            plain_cpu,
            memory,
            plain_memory,
            failover,
        )

    def _show(self, step: str) -> None:
        self._progress.show(f"{self._nodes:,} nodes: {step}")

    async def _first_start(self, cluster: Cluster) -> float:
        began = time.monotonic()
        self._leader.start()
        await until_async(cluster.is_correct, within=LIMIT, what="every ComputeDomain is Ready")
        return time.monotonic() - began

    async def _daemon_restart(self, cluster: Cluster) -> int:
        before = await cluster.rest(CONTROLLERS[0])
        node, domains = next((node, found) for node, found in cluster.changeable.items() if len(found) == 2)
        for state, readiness in (
            (ImexState.INITIALIZING, Readiness.NOT_READY),
            (ImexState.READY, Readiness.READY),
        ):
            await cluster.set_daemon(node, state)
            await until_async(partial(cluster.all_show, domains, node, readiness), within=LIMIT)
        return await cluster.rest(CONTROLLERS[0]) - before

    async def _changes(self, cluster: Cluster) -> tuple[Changes, float, float, float]:
        changes, rate = Changes(cluster), min(RATE, self._nodes / NODE_PERIOD)
        # A short run stays short: the same time as 1,000 changes take at the full rate, for fewer of them.
        before = cpu_seconds(self._leader), cpu_seconds(self._plain)
        count = await changes.run(count=round(CHANGES * rate / RATE), rate=rate)
        cpu, plain = cpu_seconds(self._leader) - before[0], cpu_seconds(self._plain) - before[1]
        return changes, rate, cpu / count, plain / count

    async def _failover(self, cluster: Cluster) -> float:
        await cluster.rest(CONTROLLERS[0])
        self._standby.start()
        await until_async(lambda: cluster.has_seen(CONTROLLERS[1]), within=LIMIT, what="the standby has started")
        holder = await lease_holder(cluster.client)
        self._leader.kill()
        killed = time.time()
        await cluster.set_daemon(next(iter(cluster.changeable)), ImexState.INITIALIZING)
        await until_async(
            lambda: cluster.writes(CONTROLLERS[1]), within=LIMIT, what="a write of the other replica"
        )
        assert await lease_holder(cluster.client) != holder
        return _seconds(cluster.writes(CONTROLLERS[1])[0]["requestReceivedTimestamp"]) - killed


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]
