"""`imex node` as a process: registers and unprepares before and without everything else.

The kubelet is served from the first moment, because unpreparing needs nothing but the disk; what preparing needs
is waited for inside the call.
"""

import asyncio
import secrets
from pathlib import Path

from imex_dra.api.names import DRIVER
from imex_dra.base.clock import SystemClock
from imex_dra.cdi.directory import Directory
from imex_dra.dra.plugin import serving, sockets
from imex_dra.hardware.protocol import Hardware
from imex_dra.kube.client import Client
from imex_dra.node.cards import CardPublisher
from imex_dra.node.checkpoint import CheckpointFile
from imex_dra.node.ledger import Ledger
from imex_dra.node.preparation import DEADLINE, Preparation
from imex_dra.node.situation import Situation
from imex_dra.node.slices import SlicePublisher
from imex_dra.node.sources import follow_agent, follow_hardware, follow_partition
from imex_dra.node.sweep import KUBELET_RECORD, sweep_for_ever
from imex_dra.node.voice import speaking


async def run(
    client: Client,
    hardware: Hardware,
    *,
    node: str,
    address: str,
    kubelet: Path,
    cdi: Path,
    agent: Path,
    prepare_deadline: float = DEADLINE,
    probe_period: float = 1.0,
    sweep_period: float = 60.0,
) -> None:
    situation, clock = Situation(node), SystemClock()
    plugin = kubelet / "plugins" / DRIVER
    ledger = Ledger(node, CheckpointFile(plugin / "imex-dra.json"), Directory(cdi), hardware)
    await asyncio.to_thread(ledger.tidy)
    preparation = Preparation(client, situation, ledger, clock, deadline=prepare_deadline)
    async with serving(preparation, sockets(kubelet, secrets.token_hex(3))), asyncio.TaskGroup() as group:
        group.create_task(follow_hardware(hardware, situation, period=probe_period))
        group.create_task(follow_partition(client, situation))
        group.create_task(follow_agent(agent, situation))
        cards, slices = (
            CardPublisher(client, situation, ledger, address=address),
            SlicePublisher(client, situation, clock),
        )
        group.create_task(_speak(situation, plugin / "speaker.lock", cards, slices))
        record = kubelet / KUBELET_RECORD
        group.create_task(sweep_for_ever(client, situation, ledger, record, period=sweep_period))


async def _speak(situation: Situation, lock: Path, cards: CardPublisher, slices: SlicePublisher) -> None:
    async with speaking(lock), asyncio.TaskGroup() as group:
        situation.learn(speaking=True)
        group.create_task(cards.run())
        group.create_task(slices.run())
