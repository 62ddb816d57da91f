"""`imex demo`."""

import asyncio
import signal
import sys

import click

from imex_dra.base.logging import configure
from imex_dra.sandbox import racks
from imex_dra.sandbox.demo.mpijob import Job
from imex_dra.sandbox.demo.program import Demo


@click.command(
    name="demo",
    help="""Show all of it on this machine: two simulated GB200 NVL72 racks, 36 nodes, a real control plane.

    \b
    It does, and checks, one after the other:
      racks           36 nodes on a real Kubernetes control plane
      driver          an IMEX daemon on each node, one NVLink partition for each rack
      ComputeDomain   its ResourceClaimTemplate appears
      minimal pod     a container gets its channel, and no other
      MPIJob          18 workers x 4 slots: mpirun imex allreduce over 72 ranks, every element verified
      every claim     allocated,reserved, one channel, one partition
      stranger        a process of a second ComputeDomain, with a real handle of the first, is refused
      clean-up        nothing is left but logs

    At a terminal the racks are drawn while it runs. What is missing is built first, once, from source: that
    takes minutes; the rest takes about one. Ctrl-C cleans up. Exit code 1: something was not as it should be.""",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="What stands on stdout at the end; progress is always on stderr.",
)
@click.option("--name", default="demo", show_default=True, help="Of its cluster, should another one run besides.")
def command(output: str, name: str) -> None:
    demo = Demo(racks.of_racks(2, "gb200-nvl72", name=name), Job(workers=18, slots=4))
    sys.exit(run(demo, output))


def run(demo: Demo, output: str) -> int:
    """The exit code: 0, 1 if anything was not as it should be, 130 if it was stopped."""
    configure("critical")
    try:
        if demo.prepare():
            asyncio.run(_until_told(demo))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("stopped; nothing is left but logs", err=True)
        return 130
    report = demo.report
    if output == "json":
        click.echo(report.as_json())
    else:
        demo.print_report(sys.stdout)
    if not report.ok:
        click.echo(f"imex: {report.failure}; logs: {report.logs}", err=True)
    return 0 if report.ok else 1


async def _until_told(demo: Demo) -> None:
    """SIGTERM is as Ctrl-C: the work is cancelled, and cleans up."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await demo.perform()
