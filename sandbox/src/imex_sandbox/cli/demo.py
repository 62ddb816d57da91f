"""`imex demo`."""

import asyncio
import signal
import sys

import click

from imex_dra.base.logging import configure
from imex_sandbox import racks
from imex_sandbox.cli.up import control_plane_option
from imex_sandbox.demo.demo import Demo
from imex_sandbox.demo.workloads import Job


@click.command(
    name="demo",
    help="""Run the driver on two simulated GB200 NVL72 racks (36 nodes) on this machine, and check every step.

    \b
    The steps, each of which is checked:
      programs        with --control-plane kubernetes, what is missing is built from source
      racks           36 simulated nodes and a control plane
      driver          an IMEX daemon on each node, one NVLink partition for each rack
      ComputeDomain   the controller creates its ResourceClaimTemplate
      pod             a container gets the channel of its ComputeDomain, and no other
      MPIJob          18 workers x 4 slots: mpirun imex allreduce over 72 ranks, every element verified
      claims          each ResourceClaim is allocated,reserved, with one channel in one partition
      isolation       a process of another ComputeDomain cannot import memory, even with a valid handle
      cleanup         nothing is left but logs

    The control plane is by default an embedded one in Python, not Kubernetes. With --control-plane kubernetes the
    same steps run on the real one; the first run then takes several minutes, because it builds what is missing.

    At a terminal the command draws both racks while it runs. Ctrl-C stops the demo and cleans up. The exit code is
    1 if a check fails.

    \b
    Try:
      imex demo
      imex demo --control-plane kubernetes
      imex demo -o json | jq .failure""",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The format of the report on stdout. Progress goes to stderr.",
)
@control_plane_option
@click.option("--name", default="demo", show_default=True, help="The name of the cluster that the demo starts.")
def command(output: str, control_plane: str, name: str) -> None:
    demo = Demo(racks.of_racks(2, "gb200-nvl72", name=name), Job(workers=18, slots=4), control_plane)
    sys.exit(run(demo, output))


def run(demo: Demo, output: str) -> int:
    """Return the exit code: 0, 1 if a check failed, 130 if the demo was stopped."""
    configure("critical")
    try:
        if demo.prepare():
            asyncio.run(_run_until_sigterm(demo))
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


async def _run_until_sigterm(demo: Demo) -> None:
    """SIGTERM cancels the demo, as Ctrl-C does, and the demo cleans up."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await demo.run()
