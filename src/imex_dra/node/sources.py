"""Where the node's knowledge comes from: its hardware, its IMEX agent, and its one NVLinkPartition."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.errors import Rejected
from imex_dra.base.waiting import first_of
from imex_dra.hardware.protocol import Hardware
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.membership import Membership, farewell, membership_of
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.readiness import Knowledge
from imex_dra.node.situation import Situation

_RECONNECT = 0.2
_NO_AGENT = "imex daemon does not answer on this node"


async def follow_hardware(hardware: Hardware, situation: Situation, *, period: float) -> NoReturn:
    while True:
        situation.learn(reading=await hardware.read())
        await asyncio.sleep(period)


async def follow_partition(client: Client, situation: Situation) -> NoReturn:
    """Watches the one NVLinkPartition where the node is, and another one when it has moved."""
    while True:
        name = situation.known.place
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(client, situation, name))
            while situation.known.place == name:
                await situation.changed.wait()
            watching.cancel()
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
        problem = _NO_AGENT
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            pass
        else:
            problem = await _converse(reader, writer, situation)
        situation.learn(daemon=DaemonState(problem=problem))
        await asyncio.sleep(_RECONNECT)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, situation: Situation) -> str:
    """Until the agent is gone, or can't be understood; returns which, in a sentence."""
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_tell(writer, situation))
        try:
            async for state in messages(reader, DaemonState):
                situation.learn(daemon=state)
        except Rejected as error:
            return f"imex daemon of this node can't be understood ({error}): is it of another version?"
        finally:
            telling.cancel()
            writer.close()
    return _NO_AGENT


async def _tell(writer: asyncio.StreamWriter, situation: Situation) -> None:
    told = None
    with suppress(ConnectionError):
        while True:
            changed, known = situation.changed, situation.known
            message = _message(known)
            if message is not None and message != told:
                writer.write(frame(message))
                await writer.drain()
                told = message
            await first_of(changed)


def _message(known: Knowledge) -> Membership | None:
    """What the agent has to know: who the members are, or that its daemon has no business here any more."""
    if known.daemon.partition not in ("", known.place) and known.place and known.speaking:
        return farewell(known.place)
    return membership_of(known.home, known.node) if known.home else None
