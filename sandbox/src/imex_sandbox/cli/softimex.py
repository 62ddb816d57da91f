"""`imex bandwidth` and `imex allreduce`. They parse their own arguments, like nvbandwidth and nccl-tests."""

import importlib
import sys

import click


def _program(name: str, module: str) -> click.Command:
    @click.command(
        name=name,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        sys.exit(importlib.import_module(module).main(list(arguments)))

    return command


bandwidth = _program("bandwidth", "imex_sandbox.softimex.bandwidth")
allreduce = _program("allreduce", "imex_sandbox.softimex.allreduce")
