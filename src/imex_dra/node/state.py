"""The node's current `Snapshot`, and its sources: the hardware, `imex daemon`, the watched NVLinkPartition."""

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import structlog
from msgspec import structs

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.errors import Rejected
from imex_dra.base.waiting import wait_any
from imex_dra.hardware.protocol import Hardware
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.memberlist import MemberList, leave, member_list_of
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.grant import Snapshot, partition_of

log = structlog.get_logger()

_RECONNECT_PERIOD = 0.2
_NO_ANSWER = "imex daemon does not answer on this node"


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
    while True:
        try:
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


async def follow_daemon(socket: Path, state: NodeState) -> NoReturn:
    """Sends the member list to `imex daemon`, and receives the state of nvidia-imex."""
    while True:
        problem = _NO_ANSWER
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            pass
        else:
            problem = await _exchange(reader, writer, state)
        state.update(daemon=DaemonState(problem=problem))
        await asyncio.sleep(_RECONNECT_PERIOD)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: NodeState) -> str:
    """Until the connection ends; returns why, as a sentence."""
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_send_member_lists(writer, state))
        try:
            async for daemon in messages(reader, DaemonState):
                state.update(daemon=daemon)
        except Rejected as error:
            return (
                f"imex daemon of this node sent an invalid message ({error}): check that it has the same version"
            )
        finally:
            sending.cancel()
            writer.close()
    return _NO_ANSWER


async def _send_member_lists(writer: asyncio.StreamWriter, state: NodeState) -> None:
    sent = None
    with suppress(ConnectionError):
        while True:
            changed, snapshot = state.changed, state.snapshot
            member_list = member_list_for_daemon(snapshot)
            if member_list is not None and member_list != sent:
                sent = member_list
                try:
                    writer.write(frame(member_list))
                except Rejected as error:
                    log.error("the member list cannot be sent to imex daemon", error=str(error))
                await writer.drain()
            await wait_any(changed)


def member_list_for_daemon(snapshot: Snapshot) -> MemberList | None:
    """The list to apply, or the order to stop a daemon that runs where the node is not, or no longer, a member."""
    elsewhere = snapshot.daemon.partition not in ("", snapshot.partition_id)
    # Without a partition, only a node that is proven to have no fabric leaves the one of its daemon.
    is_certain = snapshot.partition_id or snapshot.reading.fabric.state is FabricState.NONE
    # Only the publisher gives the order: the other program may know an older partition id.
    if elsewhere and is_certain and snapshot.is_publisher:
        return leave(snapshot.partition_id)
    if snapshot.expelled and snapshot.is_publisher:
        return leave(PartitionId(""))
    return member_list_of(snapshot.partition, snapshot.node) if snapshot.partition else None
