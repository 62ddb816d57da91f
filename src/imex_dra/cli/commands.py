"""The subcommands of `imex`. Other distributions add theirs through the entry point group `imex.commands`.

An entry point is a tuple of `Command`. Its module must not import anything large, because `imex --help` loads
it. The module of a command is imported when the command runs.
"""

import importlib
from typing import NamedTuple

import click

GROUP = "imex.commands"


class Command(NamedTuple):
    name: str
    target: str
    """The click command, as `module:attribute`."""
    help: str
    section: str = "Commands"
    """Of `imex --help`."""

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


_PROGRAMS = "Programs of the driver"
DRIVER = (
    Command("status", "imex_dra.cli.status:command", "Show racks, nodes, channels, ComputeDomains, and findings."),
    Command("verify", "imex_dra.cli.verify:command", "Verify that workloads have their channels."),
    Command("explain", "imex_dra.cli.explain:command", "Explain why a pod does not get its channel."),
    Command("lint", "imex_dra.cli.lint:command", "Check manifests before they are applied."),
    Command("migrate", "imex_dra.cli.migrate:command", "Change manifests of the old model to claims."),
    Command("preflight", "imex_dra.cli.preflight:command", "Check whether this cluster can run the driver."),
    Command("collect", "imex_dra.cli.collect:command", "Collect a support bundle, to analyze elsewhere."),
    Command("forget-node", "imex_dra.cli.forget:command", "Stop waiting for a node that will not come back."),
    Command("completion", "imex_dra.cli.completion:command", "Print a script for completion in your shell."),
    Command(
        "controller",
        "imex_dra.cli.controller:command",
        "Run the controller: members, channels, status.",
        _PROGRAMS,
    ),
    Command(
        "node", "imex_dra.cli.node:command", "Run the node program: publish devices and prepare claims.", _PROGRAMS
    ),
    Command("webhook", "imex_dra.cli.webhook:command", "Run the admission webhook.", _PROGRAMS),
)


def find_command(name: str) -> Command | None:
    own = {command.name: command for command in DRIVER}
    return own.get(name) or all_commands().get(name)


def all_commands() -> dict[str, Command]:
    # Imported here: it needs 6 MB, and the programs that run on every node are found without it.
    from importlib.metadata import entry_points

    plugins = (command for entry in sorted(entry_points(group=GROUP)) for command in entry.load())
    return {command.name: command for command in (*DRIVER, *plugins)}
