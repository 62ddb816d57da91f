"""`imex daemon`."""

import shlex
from pathlib import Path

import click

from imex_dra.cli.running import log_level_option, run_until_stopped
from imex_dra.daemon.program import run


@click.command(
    name="daemon",
    help="""Keep one nvidia-imex running with the partition's member list.

    Has no access to the API: imex node tells it who the members are, through a socket under --node-root.""",
)
@click.option(
    "--node-root",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where files and socket are.",
)
@click.option("--imex", default="nvidia-imex", show_default=True, help="The IMEX daemon's command.")
@click.option("--imex-ctl", default="nvidia-imex-ctl", show_default=True, help="The command that asks it.")
@log_level_option
def command(node_root: Path, imex: str, imex_ctl: str, log_level: str) -> None:
    program = run(
        directory=node_root / "etc/nvidia-imex",
        hosts=node_root / "hosts",
        socket=node_root / "run/daemon.sock",
        command=shlex.split(imex),
        ctl_command=shlex.split(imex_ctl),
    )
    run_until_stopped(program, log_level)
