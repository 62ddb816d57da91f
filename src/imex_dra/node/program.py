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
from imex_dra.node.sweep import sweep_for_ever


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
    ledger = Ledger(node, CheckpointFile(kubelet / "plugins" / DRIVER / "imex-dra.json"), Directory(cdi), hardware)
    await asyncio.to_thread(ledger.tidy)
    preparation = Preparation(client, situation, ledger, clock, deadline=prepare_deadline)
    async with serving(preparation, sockets(kubelet, secrets.token_hex(3))), asyncio.TaskGroup() as group:
        group.create_task(follow_hardware(hardware, situation, period=probe_period))
        group.create_task(follow_partition(client, situation))
        group.create_task(follow_agent(agent, situation))
        group.create_task(CardPublisher(client, situation, ledger, address=address).run())
        group.create_task(SlicePublisher(client, situation, clock).run())
        group.create_task(sweep_for_ever(client, ledger, period=sweep_period))
