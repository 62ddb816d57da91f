"""`imex fault`: inject faults into a running simulated cluster, one by one or from a script."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from msgspec import structs

from imex_dra.base.errors import Misconfigured
from imex_sandbox.cluster.handle import Cluster
from imex_sandbox.faults import script
from imex_sandbox.faults.injector import Injector
from imex_sandbox.faults.kinds import (
    KINDS,
    POSITIONAL,
    AnyFault,
    Fault,
    ProgramName,
    command_line,
    kebab,
    summary,
)
from imex_sandbox.faults.runner import ScriptRunner
from imex_sandbox.faults.store import ActiveFault

_SCRIPT_SUFFIXES = (".yaml", ".yml")
_DEFAULT_NAME = "imex"


class FaultGroup(click.Group):
    """Each kind of fault is a command, and so is each script."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.commands, *KINDS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        command: click.Command | None
        if name in KINDS:
            command = _kind_command(KINDS[name])
        elif Path(name).suffix in _SCRIPT_SUFFIXES:
            command = _script_command(Path(name))
        else:
            command = super().get_command(context, name)
        if command is not None:
            command.context_settings.setdefault("auto_envvar_prefix", context.auto_envvar_prefix)
        return command


def _cluster_name(context: click.Context, parameter: click.Parameter, own: str | None) -> str:
    """`imex fault --name trial active` and `imex fault active --name trial` are the same.

    The group has read the environment variable; a flag of the group takes precedence over it.
    """
    given = context.get_parameter_source("name") is click.core.ParameterSource.COMMANDLINE
    group = context.parent.params.get("name") if context.parent else None
    return (own if given else group) or _DEFAULT_NAME


_NAME_HELP = f"The name of the cluster.  [default: {_DEFAULT_NAME}]"
name_option = click.option("--name", callback=_cluster_name, help=_NAME_HELP)


@click.group(
    name="fault",
    cls=FaultGroup,
    subcommand_metavar="KIND | SCRIPT.yaml [ARGUMENTS]...",
    help="""Inject a fault into a running simulated cluster (imex up), and undo it.

    \b
    Try:
      imex fault list                             # every kind of fault, with an example
      imex fault break-fabric r0-n03 --for 30s    # undone after 30 s, or at Ctrl-C
      imex fault kill-node 'r0-*'                 # every node of rack r0, until it is undone
      imex fault active                           # the faults that are active, with their numbers
      imex fault undo 1                           # or: imex fault undo --all
      imex fault examples/faults/bad-day.yaml     # a script: several faults, one after the other

    A fault with --for is undone after that time; the command waits for it. A fault without --for stays active
    until it is undone. Faults may overlap. docs/faults.md explains every kind and where its effect is visible.""",
)
@click.option("--name", help=_NAME_HELP)
def command(name: str | None) -> None:
    pass


@command.command(name="list", help="List all kinds of faults, each with an example.")
def list_kinds() -> None:
    for name, kind in KINDS.items():
        click.echo(f"{click.style(name, bold=True):<24}{summary(kind)}\n{'':16}imex fault {kind.example}")


@command.command(name="active", help="List the active faults with the numbers that imex fault undo takes.")
@name_option
def list_active(name: str) -> None:
    for entry in Injector(Cluster(name)).active():
        click.echo(f"{entry.id:>4}  since {entry.since}  {command_line(entry.fault)}")


@command.command(name="undo", help="Undo active faults, by their numbers or all of them.")
@click.argument("numbers", nargs=-1, type=int)
@click.option("--all", "everything", is_flag=True, help="Undo all active faults.")
@name_option
def undo(numbers: tuple[int, ...], everything: bool, name: str) -> None:
    injector = Injector(Cluster(name))
    chosen = [entry.id for entry in injector.active()] if everything else numbers
    if not chosen and not everything:
        raise Misconfigured("no fault is named: give the numbers that `imex fault active` lists, or --all")
    for number in chosen:
        click.echo(f"undone: {command_line(injector.undo(number).fault)}")


def _script_command(path: Path) -> click.Command:
    @click.command(name=str(path), help="Run a script of faults. All of it is checked before its first step.")
    @name_option
    def run_script(name: str) -> None:
        injector = Injector(Cluster(name))
        _run(injector, script.load(path, injector.nodes))

    return run_script


def _kind_command(kind: type[Fault]) -> click.Command:
    parameters = [_parameter(field) for field in structs.fields(kind) if field.name != "after"]

    @name_option
    def inject(name: str, **values: Any) -> None:
        fault = _fault(kind, values)
        injector = Injector(Cluster(name))
        script.check_one(fault, injector.nodes)
        _run(injector, [fault])

    tag = str(kind.__struct_config__.tag)
    command = click.command(name=tag, help=f"{summary(kind)}\n\nFor example: imex fault {kind.example}")(inject)
    command.params = [*parameters, *command.params]
    return command


def _parameter(field: structs.FieldInfo) -> click.Parameter:
    """Values stay strings: msgspec converts and checks them, with the same errors as for a script."""
    if field.name == "program":
        return click.Argument([field.name], type=click.Choice(get_args(get_args(ProgramName)[0])))
    if field.name in POSITIONAL:
        return click.Argument([field.name], nargs=2 if field.name == "between" else -1, required=field.required)
    option = [f"--{kebab(field.encode_name)}", field.encode_name]
    if field.default is False:
        return click.Option(option, is_flag=True, help=_description(field))
    return click.Option(option, required=field.required, help=_description(field))


def _description(field: structs.FieldInfo) -> str:
    info = msgspec.inspect.type_info(field.type)
    schema = info.extra_json_schema if isinstance(info, msgspec.inspect.Metadata) else None
    has_default = isinstance(field.default, str | int | float) and field.default not in ("", False)
    default = f"  [default: {field.default}]" if has_default else ""
    return f"{(schema or {}).get('description', '')}{default}"


def _fault(kind: type[Fault], values: dict[str, Any]) -> AnyFault:
    tag = kind.__struct_config__.tag
    given = {name: value for name, value in values.items() if value not in (None, (), False)}
    try:
        fault: AnyFault = msgspec.convert({"fault": tag, **given}, type=AnyFault, strict=False)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"{tag}: {error}") from error
    return fault


def _run(injector: Injector, steps: Sequence[AnyFault]) -> None:
    began = time.monotonic()

    def show(message: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} s  {message}")

    def on_injected(fault: AnyFault, active: ActiveFault | None) -> None:
        hint = f"  (to undo it: imex fault undo {active.id})" if active and fault.seconds is None else ""
        show(f"injected: {command_line(fault)}{hint}")

    def on_undone(active: ActiveFault) -> None:
        show(f"undone:   {command_line(active.fault)}")

    with _stop_signals() as stop:
        if not ScriptRunner(injector, stop, on_injected=on_injected, on_undone=on_undone).run(steps):
            show("stopped: faults with a time limit are undone")
            sys.exit(130)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set an event instead of raising KeyboardInterrupt, so that a signal does not interrupt an action."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
