"""Common to the commands that look at a cluster: options, the snapshot, output formats, exit codes."""

import asyncio
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from imex_dra.api.views import NAMESPACES
from imex_dra.base.errors import ImexError, Rejected
from imex_dra.cli.running import kubeconfig_option
from imex_dra.diagnose.bundle import is_bundle, unpack
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.loading import load_cluster, load_files
from imex_dra.diagnose.snapshot import Snapshot
from imex_dra.kube.client import Client
from imex_dra.kube.connection import default_namespace
from imex_dra.picture.display import can_draw
from imex_dra.picture.text import Lines, plain

F = TypeVar("F", bound=Callable[..., Any])

FINDINGS = 1
COULD_NOT_RUN = 2
INTERRUPTED = 130
"""By Ctrl-C, as a shell says it. click would exit with 1, and that means findings."""

_WIDTH = 100
"""Of text that does not go to a terminal."""

from_option = click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Read a bundle of imex collect instead of the cluster; or files or directories of objects, as"
    " `kubectl get -A -o yaml` writes them. May be repeated.",
)
namespace_option = click.option(
    "-n", "--namespace", default="", metavar="NAME", help="Namespace. Default: that of the current context."
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Format.",
)


def reading_options(command: F) -> F:
    for option in (output_option, from_option, kubeconfig_option):
        command = option(command)
    return command


class Reader:
    """Where a command reads from."""

    def __init__(self, kubeconfig: Path | None, sources: tuple[Path, ...]) -> None:
        self._kubeconfig = kubeconfig
        self._sources = sources

    def namespace(self, given: str) -> str:
        """The given one, or that of kubectl."""
        if given or self._sources:
            return given or "default"
        return default_namespace(self._kubeconfig)

    async def snapshot(self, namespace: str = "") -> Snapshot:
        if len(self._sources) == 1 and is_bundle(self._sources[0]):
            return unpack(self._sources[0])
        if self._sources:
            return load_files(self._sources)
        client = Client.connect("imex-cli", self._kubeconfig)
        try:
            return await load_cluster(client, namespace or default_namespace(self._kubeconfig))
        finally:
            await client.close()

    def cluster(self, namespace: str = "") -> Cluster:
        return Cluster(asyncio.run(self.snapshot(namespace)))


def or_exit(run: Callable[[], int]) -> None:
    """Ends the program: with the returned code, with COULD_NOT_RUN, or INTERRUPTED."""
    try:
        sys.exit(run())
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise  # wrong usage, or a question answered with no: click has an exit code for each
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Python would exit with 1, and that means findings.
        traceback.print_exception(error)
        click.echo("imex: this is a bug of imex; please report it with the lines above", err=True)
    sys.exit(COULD_NOT_RUN)


def check_namespace(cluster: Cluster, name: str) -> None:
    """Raises Rejected if there is no such namespace. Files may have its objects without it."""
    snapshot = cluster.snapshot
    if not name or not snapshot.has(NAMESPACES.plural):
        return
    if any(one["metadata"].get("name") == name for one in snapshot.of(NAMESPACES.plural)):
        return
    objects = (one for found in snapshot.objects.values() for one in found)
    if all(one["metadata"].get("namespace") != name for one in objects):
        raise Rejected(f"there is no namespace {name}; check -n, or the namespace of the current context")


def width() -> int:
    return min(shutil.get_terminal_size().columns, 160) if sys.stdout.isatty() else _WIDTH


def print_lines(lines: Lines) -> None:
    """With colors at a terminal that can show them, unless NO_COLOR is set."""
    if can_draw(sys.stdout) and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        from imex_dra.picture.display import rich_text

        Console(file=sys.stdout).print(rich_text(lines), soft_wrap=True)
    else:
        click.echo(plain(lines))


def print_plain(content: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), nl=False)
