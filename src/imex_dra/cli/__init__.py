"""The `imex` command. Subcommands are imported when they are used, so that help is quick."""

import importlib
import sys
from typing import Any

import click

from imex_dra import __version__
from imex_dra.base.errors import ImexError

_COMMANDS = {
    "controller": "imex_dra.cli.controller:command",
    "node": "imex_dra.cli.node:command",
    "daemon": "imex_dra.cli.daemon:command",
    "demo": "imex_dra.cli.demo:command",
    "up": "imex_dra.cli.up:command",
    "down": "imex_dra.cli.down:command",
    "fault": "imex_dra.cli.fault:command",
    "bandwidth": "imex_dra.cli.softprograms:bandwidth",
    "allreduce": "imex_dra.cli.softprograms:allreduce",
}
_HELP = {
    "controller": "Assign channels: the one writer, run by a Deployment.",
    "node": "Serve one node's kubelet, run by a DaemonSet.",
    "daemon": "Keep one node's nvidia-imex running, run by a DaemonSet.",
    "demo": "Show all of it on this machine: two racks, a job over 72 GPUs, a stranger who is refused.",
    "up": "Run simulated racks on a real control plane, on this machine.",
    "down": "End what imex up started.",
    "fault": "Break something in a running simulated cluster, and mend it again.",
    "bandwidth": "Copy between every two ranks of a job, through imported memory, on simulated nodes.",
    "allreduce": "A verified all-reduce over all ranks of a job, on simulated nodes.",
}

_PREFIX = "IMEX"
"""Of a flag's twin in the environment. The command's name, which click would put in between, is left out, so
that one variable, IMEX_NODE_ROOT say, is for all programs of a node."""


class LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return [*_COMMANDS, *super().list_commands(context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return super().get_command(context, name)
        module, _, attribute = _COMMANDS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.context_settings.setdefault("auto_envvar_prefix", _PREFIX)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            own = {name: command.get_short_help_str() for name, command in self.commands.items()}
            formatter.write_dl(list((_HELP | own).items()))


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": _PREFIX, "help_option_names": ["-h", "--help"]},
    help="IMEX channels for Kubernetes workloads on rack-scale NVLink machines.",
)
def imex() -> None:
    pass


@imex.command(help="Print the version.")
def version() -> None:
    click.echo(f"imex-dra {__version__}")


def main() -> Any:
    try:
        return imex(prog_name="imex")
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
        sys.exit(1)
