"""The node's current `Snapshot`, and its sources: the hardware, nvidia-imex, the watched NVLinkPartition."""

import asyncio
import math
from typing import Any, NoReturn

import structlog
from msgspec import structs

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.clock import Clock
from imex_dra.daemon.hostdaemon import HostConfig, HostDaemon
from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.supervisor import Supervisor
from imex_dra.hardware.protocol import Hardware
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import Leave, MemberList, member_list_of
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.grant import Snapshot, partition_of

log = structlog.get_logger()


class NodeState:
    def __init__(self, node: str) -> None:
        self.snapshot = Snapshot(node)
        self.last_prepare = -math.inf
        """When a prepare last began or ended. It is not part of the snapshot: it is no reason to wake anybody."""
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change. Take it before reading `snapshot`: a change in between is then not missed."""
        return self._changed

    def update(self, **fields: Any) -> None:
        if "reading" in fields:
            fields = {"partition_id": partition_of(fields["reading"], self.snapshot.partition_id), **fields}
        snapshot = structs.replace(self.snapshot, **fields)
        if snapshot == self.snapshot:
            return
        self.snapshot = snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def follow_hardware(hardware: Hardware, state: NodeState) -> NoReturn:
    """On a node with a fabric and without the daemon pod the last reading stays. The GPU Operator removes that pod
    before it unloads the GPU driver, which a reading would use; and before the pod is back, no claim is served.
    """
    while True:
        try:
            has_fabric = state.snapshot.reading.fabric.state is FabricState.OK
            if state.snapshot.daemon.is_supervised or not has_fabric:
                state.update(reading=await hardware.read())
        except OSError as error:
            # Files of the host may fail, or vanish in the middle of an update of the GPU driver. The next reading
            # says what is true; until then the last one counts.
            log.warning("the hardware cannot be read", error=str(error), retry_in=hardware.period)
        await asyncio.sleep(hardware.period)


async def follow_partition(client: Client, state: NodeState) -> NoReturn:
    """Watches only the NVLinkPartition of this node, and another one after the node has moved."""
    while True:
        name = state.snapshot.partition_id
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(client, state, name))
            while state.snapshot.partition_id == name:
                await state.changed.wait()
            watch.cancel()
        state.update(watched_partition=None)


async def _watch(client: Client, state: NodeState, name: PartitionId) -> None:
    if not name:
        return
    store: Store[NVLinkPartition] = Store()
    store.subscribe(lambda old, new: state.update(watched_partition=new))
    await Reflector(client, NVLINK_PARTITIONS, store, selection=Selection(fields=f"metadata.name={name}")).run()


async def follow_daemon(
    supervisor: Supervisor, ctl: ImexCtl, clock: Clock, state: NodeState, *, tls: bool
) -> NoReturn:
    """Runs nvidia-imex with the node's member list, and keeps its state in the snapshot."""
    manager = DaemonManager(supervisor, ctl, lambda daemon: state.update(daemon=daemon), tls=tls, clock=clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        while True:
            changed, snapshot = state.changed, state.snapshot
            manager.desire(
                member_list_for_daemon(snapshot),
                may_write=snapshot.is_publisher,
                driver_root=snapshot.reading.driver_root,
            )
            await changed.wait()


async def follow_host_daemon(config: HostConfig, ctl: ImexCtl, clock: Clock, state: NodeState) -> NoReturn:
    """Observes the nvidia-imex that the host manages, and keeps its state in the snapshot."""
    daemon = HostDaemon(config, ctl, lambda daemon: state.update(daemon=daemon), clock=clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.run())
        while True:
            changed, snapshot = state.changed, state.snapshot
            member_list = member_list_of(snapshot.partition, snapshot.node) if snapshot.partition else None
            daemon.expect(snapshot.partition_id, member_list)
            await changed.wait()


def member_list_for_daemon(snapshot: Snapshot) -> MemberList | Leave | None:
    """The list to apply, or the order to stop a daemon that runs where the node is not, or no longer, a member."""
    elsewhere = snapshot.daemon.partition not in ("", snapshot.partition_id)
    # Without a partition, only a node that is proven to have no fabric leaves the one of its daemon.
    is_certain = snapshot.partition_id or snapshot.reading.fabric.state is FabricState.NONE
    if elsewhere and is_certain:
        return Leave(snapshot.partition_id)
    if snapshot.expelled:
        return Leave("")
    return member_list_of(snapshot.partition, snapshot.node) if snapshot.partition else None
