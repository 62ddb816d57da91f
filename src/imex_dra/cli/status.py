"""`imex status`. Loads and prints; everything else is in `imex_dra.diagnose` and `imex_dra.picture`."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from imex_dra.api.meta import Key, key_of
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.base.errors import ImexError, Rejected
from imex_dra.cli.exitcodes import FINDINGS, or_exit
from imex_dra.cli.reading import (
    Reader,
    check_namespace,
    print_lines,
    print_plain,
    reading_options,
    width,
)
from imex_dra.diagnose import report
from imex_dra.diagnose.chain import check_read, subject_of
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.overview import Overview, Selection, model, overview
from imex_dra.picture.display import can_draw, live_lines
from imex_dra.picture.drawing import draw
from imex_dra.picture.model import RunProgress
from imex_dra.picture.text import Lines, line, truncated

_TITLE = RunProgress("imex status", seconds=None)
_HEIGHT = 60
"""Lines of a picture that is printed once."""


@click.command(
    name="status",
    help="""Show racks, nodes, IMEX daemons, channels and ComputeDomains.

    Draws each NVLink partition as a rack with a line per node: whether the Node is Ready, whether its IMEX daemon
    is READY, which ComputeDomains have a channel there, and how many of its channel devices are in use. Below it:
    free nodes per partition, and what is wrong, with an id (docs/rules.md) and the next step.

    A node is free if a pod with a channel can start there and none is there. Old IMEX daemons are those whose pod
    has another image than its DaemonSet; they may be restarted while no claim is allocated on their node.

    It needs only rights to list, and says what it could not read. Without a terminal it prints the same as plain
    text.

    \b
    Exit codes:
      0  fine; notes are fine, too
      1  findings
      2  could not run

    \b
    Examples:
      imex status
      imex status --watch
      imex status -n team-a
      imex status --computedomain team-a/train
      imex status --partition r0 -o json
      kubectl get pods,nodes,computedomains,… -A -o yaml > objects.yaml; imex status --from objects.yaml""",
)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only ComputeDomains of this namespace.")
@click.option("--partition", default="", metavar="NAME", help="Only this NVLinkPartition, or rack.")
@click.option("--computedomain", default="", metavar="[NAMESPACE/]NAME", help="Only this ComputeDomain.")
@click.option("-w", "--watch", is_flag=True, help="Draw again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: time between two reads of the cluster.",
)
@reading_options
def command(
    namespace: str,
    partition: str,
    computedomain: str,
    watch: bool,
    every: float,
    kubeconfig: Path | None,
    context: str,
    sources: tuple[Path, ...],
    output: str,
) -> None:
    if watch and output != "text":
        raise click.UsageError(f"--watch draws, and has no -o {output}")
    reader = Reader(kubeconfig, context, sources)

    def run() -> int:
        own = "" if "/" in computedomain or not computedomain else reader.namespace(namespace)

        def select(cluster: Cluster) -> Selection:
            check_namespace(cluster, namespace)
            return Selection(namespace, _partition(cluster, partition), _domain(cluster, computedomain, own))

        if watch:
            with suppress(KeyboardInterrupt):
                asyncio.run(_watch(reader, namespace, select, every))
            return 0
        cluster = reader.cluster(namespace)
        selection = select(cluster)
        found = overview(cluster, selection)
        if output == "text":
            print_lines(screen(cluster, selection, found, width(), _HEIGHT))
        else:
            print_plain(found.plain(), output)
        return FINDINGS if report.fails(found.findings) else 0

    or_exit(run)


def _domain(cluster: Cluster, name: str, namespace: str) -> Key | None:
    """Raises Rejected if it does not exist."""
    if not name:
        return None
    before, slash, after = name.partition("/")
    found = subject_of(cluster, "computedomain", Key(before, after) if slash else Key(namespace, name)).domain
    return key_of(found) if found else None


def _partition(cluster: Cluster, name: str) -> str:
    """Raises Rejected if it does not exist."""
    if name and not Selection(partition=name).partitions(cluster):
        check_read(cluster, NVLINK_PARTITIONS.plural, f"NVLinkPartition or rack {name}")
        known = ", ".join(sorted(map(cluster.rack, cluster.fabric_nodes))) or "none"
        raise Rejected(f"there is no NVLinkPartition or rack {name}; known racks: {known}")
    return name


def screen(cluster: Cluster, selection: Selection, found: Overview, columns: int, height: int) -> Lines:
    drawn = model(cluster, selection)
    picture = draw(drawn, _TITLE, width=columns, height=height) if drawn.racks else ()
    domains = () if drawn.racks else report.domain_lines(found)
    return (
        *picture,
        line(),
        *domains,
        *report.overview_lines(found, columns),
        report.last_line(found.findings),
    )


async def _watch(reader: Reader, namespace: str, select: Callable[[Cluster], Selection], every: float) -> NoReturn:
    """Redraws until it is interrupted. A read that fails is shown, and tried again."""
    if not can_draw(sys.stdout):
        raise Rejected("--watch needs a terminal, and the package rich")
    shown: list[tuple[Cluster, Selection, Overview]] = []
    problem = ""

    def lines(columns: int, height: int, tick: int) -> Lines:
        if not shown:
            return (line((problem or "reading the cluster", "warn" if problem else "dim")),)
        cluster, selection, found = shown[-1]
        below = (line(), *report.overview_lines(found, columns), report.last_line(found.findings))
        if problem:
            below = (line((problem, "bad")), *below)
        drawn = model(cluster, selection)
        above = draw(drawn, _TITLE, width=columns, height=max(height - min(len(below), height // 3), 5), tick=tick)
        return tuple(truncated(one, columns) for one in (*above, *below)[:height])

    async with live_lines(lines, sys.stdout):
        while True:
            try:
                cluster = Cluster(await reader.snapshot(namespace))
                selection = select(cluster)
                shown[:] = [(cluster, selection, overview(cluster, selection))]
                problem = ""
            except ImexError as error:
                problem = str(error)
            await asyncio.sleep(every)
