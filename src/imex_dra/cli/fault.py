"""`imex fault`: faults in a running simulated cluster, one by one or as a script."""

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
from imex_dra.sandbox.cluster.handle import Cluster
from imex_dra.sandbox.faults import script
from imex_dra.sandbox.faults.injector import Injector
from imex_dra.sandbox.faults.kinds import KINDS, POSITIONAL, AnyFault, Fault, ProgramName, kebab, sentence, words
from imex_dra.sandbox.faults.play import Player
from imex_dra.sandbox.faults.record import Standing

_SCRIPTS = (".yaml", ".yml")

name_option = click.option("--name", default="imex", show_default=True, help="The cluster's.")


class FaultGroup(click.Group):
    """Kinds of faults are commands, and so is every script."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.commands, *KINDS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        command: click.Command | None
        if name in KINDS:
            command = _command(KINDS[name])
        elif Path(name).suffix in _SCRIPTS:
            command = _script_command(Path(name))
        else:
            command = super().get_command(context, name)
        if command is not None:
            command.context_settings.setdefault("auto_envvar_prefix", context.auto_envvar_prefix)
        return command


@click.group(
    name="fault",
    cls=FaultGroup,
    subcommand_metavar="SCRIPT.yaml | KIND ARGUMENTS...",
    help="""Break something in a running simulated cluster, and mend it again.

    A fault with --for is undone after that time, or at Ctrl-C; one without stands until it is undone. A script is
    a file of faults: see docs/faults.md and examples/faults.""",
)
def command() -> None:
    pass


@command.command(name="list", help="All kinds of faults, each with an example.")
def list_kinds() -> None:
    for name, kind in KINDS.items():
        click.echo(f"{click.style(name, bold=True):<24}{sentence(kind)}\n{'':16}imex fault {kind.example}")


@command.command(name="standing", help="The faults that stand, with the numbers by which they are undone.")
@name_option
def list_standing(name: str) -> None:
    for entry in Injector(Cluster(name)).standing():
        click.echo(f"{entry.id:>4}  since {entry.since}  {words(entry.fault)}")


@command.command(name="undo", help="Undo faults that stand, by their numbers, or all of them.")
@click.argument("numbers", nargs=-1, type=int)
@click.option("--all", "everything", is_flag=True, help="Every fault that stands.")
@name_option
def undo(numbers: tuple[int, ...], everything: bool, name: str) -> None:
    injector = Injector(Cluster(name))
    chosen = [entry.id for entry in injector.standing()] if everything else numbers
    if not chosen and not everything:
        raise Misconfigured("say which to undo, or --all: `imex fault standing` lists them")
    for number in chosen:
        click.echo(f"undone: {words(injector.undo(number).fault)}")


def _script_command(path: Path) -> click.Command:
    @click.command(name=str(path), help="Play the script.")
    @name_option
    def play(name: str) -> None:
        injector = Injector(Cluster(name))
        _play(injector, script.load(path, injector.nodes))

    return play


def _command(kind: type[Fault]) -> click.Command:
    parameters = [_parameter(kind, field) for field in structs.fields(kind) if field.name != "after"]

    @name_option
    def begin(name: str, **values: Any) -> None:
        fault = _fault(kind, values)
        injector = Injector(Cluster(name))
        script.check_one(fault, injector.nodes)
        _play(injector, [fault])

    tag = str(kind.__struct_config__.tag)
    made = click.command(name=tag, help=f"{sentence(kind)}\n\nFor example: imex fault {kind.example}")(begin)
    made.params = [*parameters, *made.params]
    return made


def _parameter(kind: type[Fault], field: structs.FieldInfo) -> click.Parameter:
    """Values stay words here: the struct's own types say what is right, as in a script."""
    if field.name == "program":
        return click.Argument([field.name], type=click.Choice(get_args(get_args(ProgramName)[0])))
    if field.name in POSITIONAL:
        return click.Argument([field.name], nargs=2 if field.name == "between" else -1, required=field.required)
    if field.default is False:
        return click.Option([f"--{kebab(field.encode_name)}", field.encode_name], is_flag=True)
    shown = field.default if isinstance(field.default, str | int | float) else None
    return click.Option(
        [f"--{kebab(field.encode_name)}", field.encode_name],
        required=field.required,
        help=f"[default: {shown}]" if shown not in (None, "") else None,
    )


def _fault(kind: type[Fault], values: dict[str, Any]) -> AnyFault:
    tag = kind.__struct_config__.tag
    given = {name: value for name, value in values.items() if value not in (None, (), False)}
    try:
        fault: AnyFault = msgspec.convert({"fault": tag, **given}, type=AnyFault, strict=False)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"{tag}: {error}") from error
    return fault


def _play(injector: Injector, steps: Sequence[AnyFault]) -> None:
    began = time.monotonic()

    def tell(what: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} s  {what}")

    def begun(fault: AnyFault, standing: Standing | None) -> None:
        hint = f"  (until: imex fault undo {standing.id})" if standing and fault.seconds is None else ""
        tell(f"begun:  {words(fault)}{hint}")

    with _stop_signals() as stop:
        player = Player(injector, stop, begun=begun, undone=lambda entry: tell(f"undone: {words(entry.fault)}"))
        if not player.play(steps):
            tell("stopped: what had a time is undone")
            sys.exit(130)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """A signal ends the waiting, never an action: what has begun is undone in good order."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
