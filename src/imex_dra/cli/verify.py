"""`imex verify`. Loads and prints; everything else is in `imex_dra.diagnose`."""

from pathlib import Path

import click

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
from imex_dra.diagnose.verification import scope_of, verify


@click.command(
    name="verify",
    help="""Verify that workloads have their channels.

    Checks the pods, claims and ComputeDomains of a namespace, and the nodes on which they run: claims are
    allocated,reserved; ComputeDomains are Ready; the template that a pod names exists, in its namespace; all pods
    are in one NVLink partition; every container that should have the channel lists the claim; the channel is
    there, and the same on every node; the IMEX daemons reach each other; each workload has a ComputeDomain of its
    own; no job needs more nodes than a partition has; no pod asks for channels in the old way.

    The first line says what was verified: the namespace of your context, or of -n; everything with -A, and with
    --from without -n; or KIND/NAME, one pod, claim, computedomain, node or workload, such as mpijob/train. Each
    finding has an id, which --explain describes, and a next step. A check is marked with a dot if something is not
    there yet, and with a question mark if you may not read its objects, or if they do not say it.

    \b
    Exit codes:
      0  fine; notes are fine, too
      1  findings
      2  could not run, or there is no such object or namespace

    \b
    Examples:
      imex verify
      imex verify -n team-a mpijob/train
      imex verify -A -o json
      imex verify --from bundle.tar.gz
      imex verify --explain IMEX402""",
)
@click.argument("subject", metavar="[KIND/NAME]", required=False, default="")
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, and all nodes.")
@click.option(
    "--strict", is_flag=True, help="A check that waits, or could not be made, is a finding, too: exit with 1."
)
@click.option(
    "--explain",
    metavar="ID",
    is_eager=True,
    callback=lambda context, _, id: _explain(context, id),
    expose_value=False,
    help="Describe a finding, and exit.",
)
@reading_options
def command(
    subject: str,
    namespace: str,
    all_namespaces: bool,
    strict: bool,
    kubeconfig: Path | None,
    context: str,
    sources: tuple[Path, ...],
    output: str,
) -> None:
    kind, slash, name = subject.partition("/")
    if subject and not (kind and slash and name):
        raise click.UsageError("give a kind and a name, as in: pod/worker-0")
    reader = Reader(kubeconfig, context, sources)

    def run() -> int:
        own = "" if all_namespaces else reader.namespace(namespace)
        cluster = reader.cluster(own)
        check_namespace(cluster, own)
        found = verify(cluster, scope_of(cluster, own, kind, name), own, subject)
        if output == "text":
            print_lines(report.verification_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        unfinished = strict and any(check.verdict in ("unknown", "waiting") for check in found.checks)
        return FINDINGS if unfinished or report.fails(found.findings) else 0

    or_exit(run)


def _explain(context: click.Context, id: str | None) -> None:
    if not id:
        return
    from imex_dra.diagnose.documentation import explanation
    from imex_dra.diagnose.rules import find_rule

    rule = find_rule(id)
    if rule is None:
        raise click.BadParameter(f"there is no finding {id} of a running cluster; see imex lint --explain, too")
    click.echo(explanation(rule), nl=False)
    context.exit()
