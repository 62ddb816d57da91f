"""`imex preflight`. Loads and prints; everything else is in `imex_dra.diagnose`."""

import asyncio
from pathlib import Path

import click

from imex_dra.cli.exitcodes import FINDINGS, or_exit
from imex_dra.cli.nodecheck import check_node
from imex_dra.cli.reading import Reader, print_lines, print_plain, reading_options, width
from imex_dra.diagnose import report
from imex_dra.diagnose.nodecheck import fails, node_check_lines
from imex_dra.diagnose.verification import preflight


@click.command(
    name="preflight",
    help="""Check whether this cluster can run the driver, before it is installed.

    Checks the versions of Kubernetes and of every kubelet on a node with GPUs, Dynamic Resource Allocation, CDI in
    the container runtime, the labels of nodes, versions of the GPU driver in a clique, the legacy nvidia-imex
    DaemonSet, NVIDIA's DRA driver, and pods that use the ports of nvidia-imex. After the installation it also
    checks that the driver runs and what the nodes report.

    What can only be seen on a node is checked with --node NAME: the GPU driver and its channels, nvidia-imex in
    the driver root, systemd units and other processes of nvidia-imex, its ports, and /dev. For this a privileged
    pod is created on the node, which only reads, and is deleted afterwards. Firewalls are not checked.

    \b
    Exit codes:
      0  fine
      1  findings
      2  could not run

    \b
    Examples:
      imex preflight
      imex preflight -o json
      imex preflight --node r0-n01
      imex preflight --from bundle.tar.gz""",
)
@click.option("--node", default="", metavar="NAME", help="Check this node instead, with a privileged pod on it.")
@click.option("--image", default="busybox:1.37", show_default=True, help="Of the pod; any with a POSIX shell.")
@click.option(
    "--check-namespace",
    default="kube-system",
    show_default=True,
    metavar="NAME",
    help="Of the pod. It must exist, and allow privileged pods.",
)
@reading_options
def command(
    node: str,
    image: str,
    check_namespace: str,
    kubeconfig: Path | None,
    context: str,
    sources: tuple[Path, ...],
    output: str,
) -> None:
    if node and sources:
        raise click.UsageError("--node needs a cluster, and --from reads none")
    reader = Reader(kubeconfig, context, sources)

    def run() -> int:
        if node:
            checks = asyncio.run(check_node(kubeconfig, context, node, check_namespace, image))
            if output == "text":
                print_lines(node_check_lines(checks))
            else:
                print_plain({"node": node, "checks": [check._asdict() for check in checks]}, output)
            return FINDINGS if fails(checks) else 0
        found = preflight(reader.cluster())
        if output == "text":
            print_lines(report.verification_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        return FINDINGS if report.fails(found.findings) else 0

    or_exit(run)
