"""`imex controller`."""

from pathlib import Path

import click

from imex_dra.api.limits import MAX_NODES
from imex_dra.api.names import DAEMON_SECRET, NAMESPACE, WEBHOOK, WEBHOOK_SECRET
from imex_dra.base.logging import Format
from imex_dra.base.telemetry import Telemetry, observed
from imex_dra.cli.running import (
    kubeconfig_option,
    log_format_option,
    log_level_option,
    metrics_option,
    run_until_stopped,
)
from imex_dra.controller.leader import run
from imex_dra.controller.settings import DEFAULTS, Settings
from imex_dra.kube.client import Client


@click.command(
    name="controller",
    help="""Assign indexes and channels, create ResourceClaimTemplates, and update status.

    Several replicas can run; only the one that holds the Lease is active. Exits on SIGTERM and when it loses the
    Lease.

    Exits with status 3, and changes nothing, while NVIDIA's DRA driver serves ComputeDomains in this cluster.

    \b
    Examples:
      imex controller                                  # in a pod, with its service account
      imex controller --kubeconfig admin.kubeconfig --metrics-address ''""",
)
@kubeconfig_option
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Namespace of the Lease.")
@click.option(
    "--suspend-after",
    type=click.FloatRange(min=0),
    default=DEFAULTS.suspend_after,
    show_default=True,
    help="Seconds after which a node that is not Ready, and that no member reaches, is suspended: the others no"
    " longer wait for it.",
)
@click.option(
    "--max-channels-per-namespace",
    type=click.IntRange(min=0),
    default=DEFAULTS.max_channels_per_namespace,
    show_default=True,
    help="Channels that the ComputeDomains of one namespace may have in each NVLink partition; 0: no limit.",
)
@click.option(
    "--max-nodes",
    type=click.IntRange(0, MAX_NODES),
    default=DEFAULTS.max_nodes,
    show_default=True,
    help="Nodes that an NVLink partition can have at a time, spares included. It cannot be changed for a partition"
    " that exists. 0: 6 more than the machine has, which follows from its GPUs (24 for an NVL72).",
)
@click.option(
    "--daemon-certificates/--no-daemon-certificates",
    default=True,
    show_default=True,
    help=f"Issue and renew the certificate of IMEX daemons in the Secret {DAEMON_SECRET}. A Secret of that name"
    " that somebody else made is left alone.",
)
@click.option(
    "--webhook-certificates/--no-webhook-certificates",
    default=False,
    show_default=True,
    help=f"Issue and renew the certificate of imex webhook in the Secret {WEBHOOK_SECRET}, and write its authority"
    f" into the webhook configurations {WEBHOOK}.",
)
@metrics_option(8080)
@log_level_option
@log_format_option
def command(
    kubeconfig: Path | None,
    namespace: str,
    suspend_after: float,
    max_channels_per_namespace: int,
    max_nodes: int,
    daemon_certificates: bool,
    webhook_certificates: bool,
    metrics_address: str,
    log_level: str,
    log_format: Format | None,
) -> None:
    async def main() -> None:
        telemetry = Telemetry()
        client = Client.connect("imex-controller", kubeconfig, metrics=telemetry.metrics)
        settings = Settings(
            suspend_after, max_channels_per_namespace, max_nodes, daemon_certificates, webhook_certificates
        )
        try:
            program = run(client, namespace=namespace, settings=settings, telemetry=telemetry)
            await observed(telemetry, metrics_address, program)
        finally:
            await client.close()

    run_until_stopped(main(), log_level, log_format)
