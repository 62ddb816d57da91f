"""Where the node's knowledge comes from: its hardware, its IMEX agent, and its one NVLinkPartition."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import structlog

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.errors import ImexError
from imex_dra.base.waiting import first_of
from imex_dra.hardware.protocol import Hardware
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.membership import membership_of
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.situation import Situation

log = structlog.get_logger()

_RECONNECT = 0.2
_NO_AGENT = "imex daemon does not answer on this node"


async def follow_hardware(hardware: Hardware, situation: Situation, *, period: float) -> NoReturn:
    while True:
        situation.learn(reading=await hardware.read())
        await asyncio.sleep(period)


async def follow_partition(client: Client, situation: Situation) -> NoReturn:
    """Watches the one NVLinkPartition that the hardware names, and another one when it names another."""
    while True:
        name = situation.known.reading.partition
        watching = asyncio.create_task(_watch(client, situation, name))
        try:
            while situation.known.reading.partition == name:
                await situation.changed.wait()
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        situation.learn(partition=None)


async def _watch(client: Client, situation: Situation, name: PartitionId) -> None:
    if not name:
        return
    store: Store[NVLinkPartition] = Store()
    store.subscribe(lambda old, new: situation.learn(partition=new))
    await Reflector(client, NVLINK_PARTITIONS, store, selection=Selection(fields=f"metadata.name={name}")).run()


async def follow_agent(socket: Path, situation: Situation) -> NoReturn:
    """Tells the agent who the members are, and hears how its daemon is."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            situation.learn(daemon=DaemonState(problem=_NO_AGENT))
            await asyncio.sleep(_RECONNECT)
            continue
        telling = asyncio.create_task(_tell(writer, situation))
        try:
            async for state in messages(reader, DaemonState):
                situation.learn(daemon=state)
        except ImexError as error:
            log.warning("the IMEX agent sent something strange", error=str(error))
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            writer.close()
        situation.learn(daemon=DaemonState(problem=_NO_AGENT))


async def _tell(writer: asyncio.StreamWriter, situation: Situation) -> None:
    told = None
    with suppress(ConnectionError):
        while True:
            changed, known = situation.changed, situation.known
            membership = membership_of(known.partition, known.node) if known.partition else None
            if membership is not None and membership != told:
                writer.write(frame(membership))
                await writer.drain()
                told = membership
            await first_of(changed)
