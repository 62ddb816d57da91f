"""`imex explain`. Loads and prints; everything else is in `imex_dra.diagnose`."""

from pathlib import Path

import click

from imex_dra.api.meta import Key
from imex_dra.cli.exitcodes import FINDINGS, or_exit
from imex_dra.cli.reading import (
    Reader,
    check_namespace,
    namespace_option,
    print_lines,
    print_plain,
    reading_options,
    width,
)
from imex_dra.diagnose import report
from imex_dra.diagnose.chain import KINDS, NAMES, explain, unknown_kind


def subject(arguments: tuple[str, ...]) -> tuple[str, str]:
    """Kind and name, of `pod NAME` or `pod/NAME`."""
    parts = arguments[0].split("/", 1) if len(arguments) == 1 else list(arguments)
    if len(parts) != 2 or not parts[1]:
        raise click.UsageError("give a kind and a name, as in: pod worker-0, or pod/worker-0")
    kind = parts[0].lower()
    if kind not in KINDS:
        raise click.UsageError(unknown_kind(parts[0]))
    return kind, parts[1]


def _kinds(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of objects are not completed: that would read the cluster at each key."""
    return [] if context.params.get("arguments") else [kind for kind in NAMES if kind.startswith(incomplete)]


@click.command(
    name="explain",
    help="""Explain why a pod does not get its channel.

    Follows the chain pod → template → ComputeDomain → claim → partition → fabric → daemon → channel, and shows the
    first broken link with the evidence and the next step. For a pod that does not schedule, it says per NVLink
    partition how many nodes fit, and what the others lack: channel devices, GPUs, tolerated taints, affinity.

    KIND is pod, claim (a ResourceClaim), computedomain or node. With --from the namespace may be left out if only
    one has the name.

    \b
    Exit codes:
      0  no broken link
      1  a link is broken, or has a warning
      2  could not run, or there is no such object

    \b
    Examples:
      imex explain pod worker-3
      imex explain -n team-a computedomain train
      imex explain node r0-n03 -o json""",
)
@click.argument("arguments", metavar="KIND NAME", nargs=-1, required=True, shell_complete=_kinds)
@namespace_option
@reading_options
def command(
    arguments: tuple[str, ...],
    namespace: str,
    kubeconfig: Path | None,
    context: str,
    sources: tuple[Path, ...],
    output: str,
) -> None:
    kind, name = subject(arguments)
    reader = Reader(kubeconfig, context, sources)

    def run() -> int:
        own = reader.namespace(namespace)
        cluster = reader.cluster(own)
        if KINDS[kind].namespaced:
            check_namespace(cluster, own)
        found = explain(cluster, kind, Key(own, name))
        if output == "text":
            print_lines(report.explanation_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        return FINDINGS if report.fails(found.findings) else 0

    or_exit(run)
