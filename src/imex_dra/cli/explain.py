"""`imex explain`. Loads and prints; everything else is in `imex_dra.diagnose`."""

from pathlib import Path

import click

from imex_dra.api.meta import Key
from imex_dra.cli.reading import (
    FINDINGS,
    Reader,
    check_namespace,
    namespace_option,
    or_exit,
    print_lines,
    print_plain,
    reading_options,
    width,
)
from imex_dra.diagnose import report
from imex_dra.diagnose.chain import explain

KINDS = {
    "pod": "pod", "pods": "pod", "po": "pod",
    "claim": "claim", "claims": "claim", "resourceclaim": "claim", "resourceclaims": "claim",
    "computedomain": "computedomain", "computedomains": "computedomain",
    "node": "node", "nodes": "node", "no": "node",
}  # fmt: skip


def subject(arguments: tuple[str, ...]) -> tuple[str, str]:
    """Kind and name, of `pod NAME` or `pod/NAME`."""
    parts = arguments[0].split("/", 1) if len(arguments) == 1 else list(arguments)
    if len(parts) != 2 or not parts[1]:
        raise click.UsageError("give a kind and a name, as in: pod worker-0, or pod/worker-0")
    kind = KINDS.get(parts[0].lower())
    if kind is None:
        raise click.UsageError(f"unknown kind {parts[0]}; known kinds: pod, claim, computedomain, node")
    return kind, parts[1]


@click.command(
    name="explain",
    help="""Explain why a pod does not get its channel.

    Follows the chain pod → template → ComputeDomain → claim → partition → fabric → daemon → channel, and shows the
    first broken link with the evidence and the next step. For a pod that does not schedule, it says per NVLink
    partition how many nodes fit, and what the others lack: channel devices, GPUs, tolerated taints, affinity.

    KIND is pod, claim (a ResourceClaim), computedomain or node.

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
@click.argument("arguments", metavar="KIND NAME", nargs=-1, required=True)
@namespace_option
@reading_options
def command(
    arguments: tuple[str, ...], namespace: str, kubeconfig: Path | None, sources: tuple[Path, ...], output: str
) -> None:
    kind, name = subject(arguments)
    reader = Reader(kubeconfig, sources)

    def run() -> int:
        own = reader.namespace(namespace)
        cluster = reader.cluster(own)
        if kind != "node":
            check_namespace(cluster, own)
        found = explain(cluster, kind, Key("" if kind == "node" else own, name))
        if output == "text":
            print_lines(report.explanation_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        return FINDINGS if report.fails(found.findings) else 0

    or_exit(run)
