"""The command `imex daemon`, as a process with a real soft IMEX."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.simulatednode import KILLED_WITH_PARENT, Rack, SimulatedNode
from tests.waiting import until_async


def start(node: SimulatedNode) -> "subprocess.Popen[bytes]":
    soft = f"{sys.executable} -m imex_sandbox.softimex"
    flags = [*node.root.daemon_flags, f"--imex={soft}.daemon", f"--imex-ctl={soft}.ctl"]
    with (node.root.path / "log").open("ab") as log:
        return subprocess.Popen(
            [*KILLED_WITH_PARENT, sys.executable, "-m", "imex_dra.cli", "daemon", *flags],
            env=os.environ | node.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_on_a_signal_the_command_stops_nvidia_imex_and_exits_with_0(
    rack: Rack, node: SimulatedNode, number: signal.Signals
) -> None:
    with start(node) as program:
        async with node.client() as client:
            await client.send(rack.member_list(0, 0))
            await client.until_ready(0)
            imex_pid = node.imex_pid
            assert imex_pid != program.pid
            program.send_signal(number)
            assert await asyncio.to_thread(program.wait, 60) == 0, (node.root.path / "log").read_text()
            assert not Path(f"/proc/{imex_pid}").exists()
            await until_async(lambda: client.closed)


async def test_after_a_restart_the_daemon_is_ready_before_imex_node_connects(
    rack: Rack, node: SimulatedNode
) -> None:
    for first in (True, False):
        with start(node) as program:
            async with node.client() as client:
                if first:
                    await client.send(rack.member_list(0, 0, generation=3))
                await client.until_ready(0, generation=3)
            program.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.wait, 60) == 0
        node.socket.unlink(missing_ok=True)
