"""`imex daemon` as a process, with a real soft IMEX below it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.node import DIES_WITH_US, Node, Rack, eventually


def start(node: Node) -> "subprocess.Popen[bytes]":
    soft = f"{sys.executable} -m imex_dra.softimex"
    flags = [f"--node-root={node.root.path}", f"--imex={soft}.daemon", f"--imex-ctl={soft}.ctl"]
    variables = {"IMEX_NODE_ROOT": str(node.root.path), "IMEX_FABRIC_DIR": str(node.rack.directory / "f")}
    with (node.root.path / "log").open("ab") as log:
        return subprocess.Popen(
            [*DIES_WITH_US, sys.executable, "-m", "imex_dra.cli", "daemon", *flags],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_stops_its_child_first_and_ends_with_0(
    rack: Rack, node: Node, number: signal.Signals
) -> None:
    with start(node) as program:
        async with node.speaker() as speaker:
            await speaker.tell(rack.membership(0, 0))
            await speaker.until_ready(0)
            child = int((node.root.path / "run/imex.lock").read_text())
            assert child != program.pid
            program.send_signal(number)
            assert await asyncio.to_thread(program.wait, 60) == 0, (node.root.path / "log").read_text()
            assert not Path(f"/proc/{child}").exists()
            await eventually(lambda: speaker.hung_up)


async def test_started_again_it_is_ready_before_anybody_speaks_to_it(rack: Rack, node: Node) -> None:
    for told in (True, False):
        with start(node) as program:
            async with node.speaker() as speaker:
                if told:
                    await speaker.tell(rack.membership(0, 0, generation=3))
                await speaker.until_ready(0, generation=3)
            program.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.wait, 60) == 0
        node.socket.unlink(missing_ok=True)
