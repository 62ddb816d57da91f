"""`imex forget-node`."""

import asyncio
from pathlib import Path

import click

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
    Example:
      imex forget-node r0-n17""",
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@kubeconfig_option
def command(name: str, yes: bool, kubeconfig: Path | None) -> None:
    asyncio.run(_forget(name, yes, kubeconfig))


async def _forget(node: str, yes: bool, kubeconfig: Path | None) -> None:
    client = Client.connect("imex-forget-node", kubeconfig)
    try:
        partitions = await partitions_to_forget(client, node)
        names = ", ".join(partition.metadata.name for partition in partitions)
        click.echo(_RISK.format(node=node))
        if not yes:
            click.confirm(f"Forget {node} in NVLinkPartition {names}?", abort=True)
        await forget(client, node, partitions)
        click.echo(f"{node} is forgotten in NVLinkPartition {names}.")
    finally:
        await client.close()
