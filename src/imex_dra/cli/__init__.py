"""The `imex` command. Subcommands are imported when they run, so that `imex --help` is fast."""

import os
import signal
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from imex_dra import __version__
from imex_dra.base.errors import ImexError, OtherDriver
from imex_dra.cli.commands import all_commands, find_command

_PREFIX = "IMEX"
"""Each flag can be set by the environment variable IMEX_<FLAG>, the same for all subcommands."""

OTHER_DRIVER_STATUS = 3
"""Exit status; other errors end with 1, and wrong usage with 2."""


class LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return [*all_commands(), *super().list_commands(context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        lazy = find_command(name)
        if lazy is None:
            return super().get_command(context, name)
        command = lazy.load()
        command.context_settings.setdefault("auto_envvar_prefix", _PREFIX)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing the commands, as click would do to find out which ones are hidden."""
        if incomplete.startswith("-"):
            return super().shell_complete(context, incomplete)
        helps = {name: command.get_short_help_str() for name, command in self.commands.items()}
        helps |= {name: command.help for name, command in all_commands().items()}
        found = sorted(name for name in helps if name.startswith(incomplete))
        return [CompletionItem(name, help=helps[name]) for name in found]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for command in all_commands().values():
            sections.setdefault(command.section, []).append((command.name, command.help))
        own = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        next(iter(sections.values())).extend(own)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": _PREFIX, "help_option_names": ["-h", "--help"]},
    help="""IMEX channels for Kubernetes workloads on rack-scale NVLink machines.

    \b
    Examples:
      imex lint job.yaml               # before it is applied
      imex explain pod worker-3        # why does it not start?
      imex status --watch              # the racks
      imex COMMAND --help              # more, with examples""",
)
def imex() -> None:
    pass


@imex.command(
    help="""Print the version.

    \b
    Examples:
      imex version
      imex version -o json"""
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Format.",
)
def version(output: str) -> None:
    # JSON is YAML.
    click.echo(f"imex-dra {__version__}" if output == "text" else f'{{"version": "{__version__}"}}')


def _program() -> str:
    """As a plugin of kubectl it is called kubectl-imex."""
    return "kubectl imex" if sys.argv[0].endswith("kubectl-imex") else "imex"


def exit_status(error: ImexError) -> int:
    return OTHER_DRIVER_STATUS if isinstance(error, OtherDriver) else 1


def main() -> Any:
    if os.getpid() == 1:
        # The kernel drops signals to pid 1 that it does not handle. A program handles SIGTERM when it runs, but a
        # container may be stopped while its modules are still being imported.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return imex(prog_name=_program())
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
        sys.exit(exit_status(error))
