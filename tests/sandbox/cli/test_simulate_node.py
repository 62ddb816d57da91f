"""`imex simulate-node` makes a node that the driver and soft IMEX accept."""

from pathlib import Path

import click.testing

from imex_dra.api.nvlinknode import FabricState
from imex_sandbox.cli.simulatenode import command
from imex_sandbox.simulated import SimulatedHardware
from imex_sandbox.softimex.noderoot import NodeRoot

PARTITION = "00000000-0000-4000-8000-000000000001.1"


def simulate(directory: Path, *options: str) -> None:
    argv = [f"--directory={directory}", f"--partition={PARTITION}", "--address=192.0.2.7", *options]
    done = click.testing.CliRunner().invoke(command, argv)
    assert done.exit_code == 0, done.output


async def test_the_driver_reads_a_healthy_fabric_and_soft_imex_its_address(tmp_path: Path) -> None:
    simulate(tmp_path, "--profile=gh200-nvl32")
    reading = await SimulatedHardware(tmp_path).read()
    assert (reading.fabric.state, reading.partition, reading.gpu_count) == (FabricState.OK, PARTITION, 2)
    assert reading.channel_major > 0
    root = NodeRoot(tmp_path)
    assert root.addresses() == ("192.0.2.7",)
    assert root.require_hardware().problem == ""


def test_a_second_call_keeps_what_runs_on_the_node(tmp_path: Path) -> None:
    """Both pods of the driver call it, in any order, and again after a restart."""
    simulate(tmp_path)
    status = tmp_path / "run/imex/status"
    status.parent.mkdir()
    status.write_text("state=running\n")
    simulate(tmp_path)
    assert status.read_text() == "state=running\n"
