"""`imex node`."""

from pathlib import Path

import click

from imex_dra.cli.running import kubeconfig_option, log_level_option, run_until_stopped
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.hardware.protocol import Hardware
from imex_dra.hardware.simulated import SimulatedHardware
from imex_dra.kube.client import Client
from imex_dra.node.preparation import DEADLINE
from imex_dra.node.program import run

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_SOCKET = Path("/run/imex-dra/daemon.sock")

_FILE_PERIOD = 1.0
_NVML_PERIOD = 10.0
"""Asking NVML costs a process; a fabric that comes or goes is news for the next ten seconds as well."""


@click.command(
    name="node",
    help="""Publish one node's seats and card, and prepare its claims for the kubelet.

    Runs on every node. The hardware is asked through NVML, or is the simulated one under --node-root.""",
)
@click.option("--node-name", required=True, help="The Node object's name.")
@click.option("--address", required=True, help="Where this node's IMEX daemon listens.")
@click.option("--node-root", type=_DIRECTORY, help="A simulated node's directory, instead of real hardware.")
@click.option(
    "--host-root",
    type=_DIRECTORY,
    default=Path("/"),
    show_default=True,
    help="Where the host's root directory is mounted: the GPU driver's library, /proc, /sys, /etc.",
)
@click.option(
    "--daemon-socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Where imex daemon listens.  [default: {_SOCKET}, or run/daemon.sock under --node-root]",
)
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
    node_root: Path | None,
    host_root: Path,
    daemon_socket: Path | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    prepare_deadline: float,
    kubeconfig: Path | None,
    log_level: str,
) -> None:
    hardware: Hardware = SimulatedHardware(node_root) if node_root else NvmlHardware(host_root)

    async def program() -> None:
        client = Client.connect("imex-node", kubeconfig)
        try:
            await run(
                client,
                hardware,
                node=node_name,
                address=address,
                kubelet=kubelet_dir,
                cdi=cdi_dir,
                agent=daemon_socket or (node_root / "run/daemon.sock" if node_root else _SOCKET),
                prepare_deadline=prepare_deadline,
                probe_period=_FILE_PERIOD if node_root else _NVML_PERIOD,
            )
        finally:
            await client.close()

    run_until_stopped(program(), log_level)
