"""`imex node`."""

from pathlib import Path

import click

from imex_dra.cli.running import kubeconfig_option, log_level_option, run_until_stopped
from imex_dra.hardware.simulated import SimulatedHardware
from imex_dra.kube.client import Client
from imex_dra.node.preparation import DEADLINE
from imex_dra.node.program import run

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command(
    name="node",
    help="""Publish one node's seats and card, and prepare its claims for the kubelet.

    Runs on every node. The hardware is the simulated one under --node-root.""",
)
@click.option("--node-name", required=True, help="The Node object's name.")
@click.option("--address", required=True, help="Where this node's IMEX daemon listens.")
@click.option("--node-root", type=_DIRECTORY, required=True, help="The simulated node's directory.")
@click.option("--kubelet-dir", type=_DIRECTORY, default=Path("/var/lib/kubelet"), show_default=True)
@click.option("--cdi-dir", type=_DIRECTORY, default=Path("/var/run/cdi"), show_default=True)
@click.option(
    "--prepare-deadline",
    default=DEADLINE,
    show_default=True,
    help="Seconds a prepare may wait; the kubelet's limit is 45.",
)
@kubeconfig_option
@log_level_option
def command(
    node_name: str,
    address: str,
    node_root: Path,
    kubelet_dir: Path,
    cdi_dir: Path,
    prepare_deadline: float,
    kubeconfig: Path | None,
    log_level: str,
) -> None:
    async def program() -> None:
        client = Client.connect("imex-node", kubeconfig)
        try:
            await run(
                client,
                SimulatedHardware(node_root),
                node=node_name,
                address=address,
                kubelet=kubelet_dir,
                cdi=cdi_dir,
                agent=node_root / "run/daemon.sock",
                prepare_deadline=prepare_deadline,
            )
        finally:
            await client.close()

    run_until_stopped(program(), log_level)
