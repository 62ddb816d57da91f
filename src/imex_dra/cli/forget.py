"""`imex forget-node`."""

import asyncio
from pathlib import Path

import click

from imex_dra.cli.exitcodes import or_exit
from imex_dra.cli.reading import context_option, output_option, print_plain
from imex_dra.cli.running import kubeconfig_option
from imex_dra.controller.forgetting import forget, partitions_to_forget
from imex_dra.kube.client import Client

_RISK = (
    "Processes on {node}, if it is still powered on, may share memory with other workloads: the channels that they"
    " hold are given to other ComputeDomains. Power it off first."
)


@click.command(
    name="forget-node",
    help="""Stop waiting for a node that will not come back.

    A dead node keeps its place in its NVLinkPartition: the channels that its processes may hold are not reused,
    and a partition that was lost waits for its report. That is right for a node that returns. For one that does
    not, delete its Node object, or run this command if the Node object must stay.

    What it risks: processes on the node, if it is still powered on, may share memory with other workloads. Power
    it off first.

    The node may return later: it joins like a new one, after it has reported which channels it holds. A node that
    is Ready is refused. Needs the rights to patch nvlinkpartitions and to delete nvlinknodes.

    \b
    Exit codes:
      0  the node is forgotten
      1  you did not confirm it
      2  could not run, or was refused

    \b
    Examples:
      imex forget-node r0-n17
      imex forget-node r0-n17 --yes -o json""",
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
@context_option
@kubeconfig_option
def command(name: str, yes: bool, output: str, context: str, kubeconfig: Path | None) -> None:
    def run() -> int:
        names = asyncio.run(_forget(name, yes, kubeconfig, context))
        if output == "text":
            click.echo(f"{name} is forgotten in NVLinkPartition {', '.join(names)}.")
        else:
            print_plain({"node": name, "partitions": names}, output)
        return 0

    or_exit(run)


async def _forget(node: str, yes: bool, kubeconfig: Path | None, context: str) -> list[str]:
    client = Client.connect("imex-forget-node", kubeconfig, context)
    try:
        partitions = await partitions_to_forget(client, node)
        names = [partition.metadata.name for partition in partitions]
        click.echo(_RISK.format(node=node), err=True)
        if not yes:
            click.confirm(f"Forget {node} in NVLinkPartition {', '.join(names)}?", abort=True, err=True)
        await forget(client, node, partitions)
        return names
    finally:
        await client.close()
