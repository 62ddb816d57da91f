"""`imex controller`."""

from pathlib import Path

import click

from imex_dra.api.names import NAMESPACE
from imex_dra.cli.running import kubeconfig_option, log_level_option, run_until_stopped
from imex_dra.controller.program import run
from imex_dra.kube.client import Client


@click.command(
    name="controller",
    help="""Assign slots and channels, make ResourceClaimTemplates, keep status true.

    Several may run; the one that holds the Lease works. Stops when told to, and when it loses the Lease.""",
)
@kubeconfig_option
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Where the Lease is.")
@log_level_option
def command(kubeconfig: Path | None, namespace: str, log_level: str) -> None:
    async def program() -> None:
        client = Client.connect("imex-controller", kubeconfig)
        try:
            await run(client, namespace=namespace)
        finally:
            await client.close()

    run_until_stopped(program(), log_level)
