"""`imex preflight`. Loads and prints; everything else is in `imex_dra.diagnose`."""

from pathlib import Path

import click

from imex_dra.cli.reading import FINDINGS, Reader, or_exit, print_lines, print_plain, reading_options, width
from imex_dra.diagnose import report
from imex_dra.diagnose.verification import preflight


@click.command(
    name="preflight",
    help="""Check whether this cluster can run the driver, before it is installed.

    Checks the versions of Kubernetes and of every kubelet on a node with GPUs, Dynamic Resource Allocation, CDI in
    the container runtime, the labels of nodes, versions of the GPU driver in a clique, the legacy nvidia-imex
    DaemonSet, NVIDIA's DRA driver, and pods that use the ports of nvidia-imex. After the installation it also
    checks that the driver runs and what the nodes report.

    What can only be seen on a node is not checked: systemd units of nvidia-imex, firewalls, and the assumptions in
    docs/hardware.md.

    \b
    Exit codes:
      0  fine
      1  findings
      2  could not run

    \b
    Examples:
      imex preflight
      imex preflight -o json
      imex preflight --from bundle.tar.gz""",
)
@reading_options
def command(kubeconfig: Path | None, sources: tuple[Path, ...], output: str) -> None:
    reader = Reader(kubeconfig, sources)

    def run() -> int:
        found = preflight(reader.cluster())
        if output == "text":
            print_lines(report.verification_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        return FINDINGS if report.fails(found.findings) else 0

    or_exit(run)
