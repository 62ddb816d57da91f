"""Common to the commands that look at a cluster: options, the snapshot, output formats."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from imex_dra.api.views import NAMESPACES
from imex_dra.base.errors import Rejected
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
context_option = click.option(
    "--context", default="", metavar="NAME", help="Context of the kubeconfig. Default: the current one."
)
namespace_option = click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    help="Namespace. Default: that of the context; with --from: all.",
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
    for option in (output_option, from_option, context_option, kubeconfig_option):
        command = option(command)
    return command


class Reader:
    """Where a command reads from."""

    def __init__(self, kubeconfig: Path | None, context: str, sources: tuple[Path, ...]) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._sources = sources

    def namespace(self, given: str) -> str:
        """The given one, or that of kubectl. Empty, which means all, if files are read: these have no context."""
        if given or self._sources:
            return given
        return default_namespace(self._kubeconfig, self._context)

    async def snapshot(self, namespace: str = "") -> Snapshot:
        bundle = next(filter(is_bundle, self._sources), None)
        if bundle and len(self._sources) > 1:
            raise Rejected(f"{bundle} is an archive, which is read alone: leave out the other --from")
        if bundle:
            return unpack(bundle)
        if self._sources:
            return load_files(self._sources)
        client = Client.connect("imex-cli", self._kubeconfig, self._context)
        try:
            return await load_cluster(client, namespace or default_namespace(self._kubeconfig, self._context))
        finally:
            await client.close()

    def cluster(self, namespace: str = "") -> Cluster:
        return Cluster(asyncio.run(self.snapshot(namespace)))


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
