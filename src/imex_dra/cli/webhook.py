"""`imex webhook`."""

from pathlib import Path

import click

from imex_dra.api.names import WEBHOOK_SECRET
from imex_dra.base.logging import Format
from imex_dra.base.telemetry import Telemetry, observed, parse_address
from imex_dra.cli.running import (
    checked_address,
    kubeconfig_option,
    log_format_option,
    log_level_option,
    metrics_option,
    run_until_stopped,
)
from imex_dra.kube.client import Client
from imex_dra.webhook.program import run


@click.command(
    name="webhook",
    help="""Review ComputeDomains, claims, claim templates and pods when they are created.

    Rejects what can never work, and warns of what another object may cure. While it does not run, the API server
    admits everything.

    \b
    Examples:
      imex webhook --address :8443 --certificate-dir /etc/imex-webhook""",
)
@click.option(
    "--address",
    default=":8443",
    show_default=True,
    callback=checked_address,
    help="HOST:PORT, or :PORT for all addresses, on which the API server calls it.",
)
@click.option(
    "--certificate-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/etc/imex-webhook"),
    show_default=True,
    help=f"Directory with tls.crt and tls.key, as a mounted Secret ({WEBHOOK_SECRET}) has them. They may change at"
    " any time.",
)
@kubeconfig_option
@metrics_option(8080)
@log_level_option
@log_format_option
def command(
    address: str,
    certificate_dir: Path,
    kubeconfig: Path | None,
    metrics_address: str,
    log_level: str,
    log_format: Format | None,
) -> None:
    async def main() -> None:
        telemetry = Telemetry()
        client = Client.connect("imex-webhook", kubeconfig, metrics=telemetry.metrics)
        host, port = parse_address(address)
        try:
            program = run(client, host=host, port=port, certificates=certificate_dir, telemetry=telemetry)
            await observed(telemetry, metrics_address, program)
        finally:
            await client.close()

    run_until_stopped(main(), log_level, log_format)
