"""`imex daemon`."""

import shlex
from pathlib import Path

import click

from imex_dra.api.names import DAEMON_SOCKET
from imex_dra.cli.running import log_level_option, run_until_stopped
from imex_dra.daemon.agent import Agent
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.files import ImexFiles

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    name="daemon",
    help="""Run one nvidia-imex with the member list of the node's partition.

    Does not use the Kubernetes API: imex node sends the member list through --socket.""",
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/etc/nvidia-imex",
    show_default=True,
    help="Directory for the configuration of nvidia-imex.",
)
@click.option(
    "--hosts", type=_FILE, default="/etc/hosts", show_default=True, help="Hosts file to add the members to."
)
@click.option("--socket", type=_FILE, default=DAEMON_SOCKET, show_default=True, help="Unix socket to listen on.")
@click.option("--imex", default="nvidia-imex", show_default=True, help="Command that runs nvidia-imex.")
@click.option(
    "--imex-ctl", default="nvidia-imex-ctl", show_default=True, help="Command that runs nvidia-imex-ctl."
)
@log_level_option
def command(config_dir: Path, hosts: Path, socket: Path, imex: str, imex_ctl: str, log_level: str) -> None:
    files = ImexFiles(config_dir, hosts)
    agent = Agent(files, ImexCtl(shlex.split(imex_ctl), files.config), shlex.split(imex))
    run_until_stopped(agent.run(socket), log_level)
