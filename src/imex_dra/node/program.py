"""`imex node` as a process.

It serves the kubelet from the first moment, because unprepare needs only the disk; a prepare waits inside
the call for what it needs.
"""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from imex_dra.api import nodereasons
from imex_dra.api.names import DRIVER, IMEX_PAGE
from imex_dra.base.clock import Clock
from imex_dra.base.errors import OtherDriver
from imex_dra.base.telemetry import Telemetry
from imex_dra.cdi.directory import Directory
from imex_dra.daemon.hostdaemon import HostConfig
from imex_dra.daemon.supervisor import Supervisor
from imex_dra.dra.plugin import Registration, registration_problem, serving
from imex_dra.dra.sockets import Sockets, sockets
from imex_dra.hardware.protocol import Hardware, Reading
from imex_dra.imex.ctl import ImexCtl
from imex_dra.kube.client import Client
from imex_dra.node.address import find_address
from imex_dra.node.checkpoint import CheckpointFile
from imex_dra.node.devices import PUBLISH_AFTER, DevicePublisher
from imex_dra.node.grant import MAX_CLAIMS
from imex_dra.node.health import NodeHealth
from imex_dra.node.lasting import follow_lasting_facts
from imex_dra.node.otherdriver import check_before_registration, withdraw
from imex_dra.node.prepare import DEADLINE, ClaimPreparer
from imex_dra.node.prepared import PreparedClaims
from imex_dra.node.report import NodeReporter
from imex_dra.node.state import NodeState, follow_daemon, follow_hardware, follow_host_daemon, follow_partition
from imex_dra.node.sweep import KUBELET_CHECKPOINT, follow_driver, sweep_forever
from imex_dra.node.telemetry import MeasuredDriver, node_samples

log = structlog.get_logger()

_LOCK_PERIOD = 0.2
_DISK_PERIOD = 5.0


async def run(
    client: Client,
    hardware: Hardware,
    *,
    node: str,
    address: str = "",
    address_family: str = "",
    pod_network: bool = False,
    kubelet: Path,
    cdi: Path,
    imex_directory: Path,
    ctl: ImexCtl,
    imex_tls: bool = False,
    host_imex: HostConfig | None = None,
    prepare_deadline: float = DEADLINE,
    max_claims: int = MAX_CLAIMS,
    publish_after: float = PUBLISH_AFTER,
    sweep_period: float = 60.0,
    telemetry: Telemetry | None = None,
) -> None:
    telemetry = telemetry or Telemetry()
    state, clock = NodeState(node), Clock()
    state.update(max_claims=max_claims, host_managed=host_imex is not None)
    plugin = kubelet / "plugins" / DRIVER
    prepared = PreparedClaims(node, CheckpointFile(plugin / "imex-dra.json"), Directory(cdi), hardware)
    preparer = ClaimPreparer(client, state, prepared, clock, deadline=prepare_deadline)
    try:
        await check_before_registration(client, node)
        paths, health = sockets(kubelet, secrets.token_hex(3)), NodeHealth(state, clock)
        registration, driver = Registration(), MeasuredDriver(preparer, telemetry.metrics, clock)
        async with (
            serving(driver, paths, health=health, registration=registration),
            _observed(telemetry, state, registration, paths, ctl),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(follow_hardware(hardware, state))
            group.create_task(follow_partition(client, state))
            if host_imex is not None:
                group.create_task(follow_host_daemon(host_imex, ctl, clock, state))
            else:
                group.create_task(follow_daemon(Supervisor(imex_directory), ctl, clock, state, tls=imex_tls))
            group.create_task(follow_lasting_facts(state, clock))
            group.create_task(follow_driver(state, prepared))
            publisher = DevicePublisher(client, state, clock, publish_after=publish_after)

            reporter = NodeReporter(client, state, prepared, clock)

            async def follow_address() -> None:
                if pod_network:
                    # The daemon pod says it, each one another: `Snapshot.listening_address`.
                    state.update(address_problem=nodereasons.no_pod_address(node=node))
                    return
                found = address or await find_address(
                    client, node, address_family, problem=lambda missing: state.update(address_problem=missing)
                )
                state.update(address=found, address_problem=None)

            group.create_task(follow_address())
            group.create_task(_publish(state, plugin / "publisher.lock", reporter.run, publisher.run))
            checkpoint = kubelet / KUBELET_CHECKPOINT
            group.create_task(sweep_forever(client, state, prepared, checkpoint, period=sweep_period))
    except* OtherDriver as found:
        await withdraw(client, node, found, clock)
        raise


@asynccontextmanager
async def _observed(
    telemetry: Telemetry, state: NodeState, registration: Registration, paths: Sockets, ctl: ImexCtl
) -> AsyncIterator[None]:
    async def socket_problem() -> str:
        return await registration_problem(paths)

    async def kubelet_problem() -> str:
        return registration.problem

    async def hardware_problem() -> str:
        return "" if state.snapshot.reading != Reading() else "the hardware has not been read yet"

    # Not whether this program publishes for the node: during a rolling update the new one is ready before the old
    # one ends, and publishes after that.
    with (
        telemetry.metrics.source(lambda: node_samples(state.snapshot, registration)),
        telemetry.live("registration-socket", socket_problem),
        telemetry.ready("kubelet", kubelet_problem),
        telemetry.ready("hardware", hardware_problem),
        # No new query: the port has no authentication, and a reader must not start processes on the node.
        telemetry.page(IMEX_PAGE, ctl.last_answers),
    ):
        yield


async def _publish(state: NodeState, lock: Path, *programs: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with publisher_lock(lock), asyncio.TaskGroup() as group:
        state.update(is_publisher=True)
        for program in programs:
            group.create_task(program())


@asynccontextmanager
async def publisher_lock(path: Path) -> AsyncIterator[None]:
    """During an update two node programs run. Only one publishes for the node, so that its objects do not flap:
    the older one until it ends, however it ends, because the kernel then releases its lock.
    """
    descriptor = await _open(path)
    try:
        while not _locked(descriptor):  # noqa: ASYNC110 - a blocking flock cannot be cancelled
            await asyncio.sleep(_LOCK_PERIOD)
        log.info("publishing for this node")
        yield
    finally:
        os.close(descriptor)


async def _open(path: Path) -> int:
    """A full disk delays the publication, and nothing else."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("the publisher's lock cannot be opened", error=str(error), retry_in=_DISK_PERIOD)
        await asyncio.sleep(_DISK_PERIOD)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
