"""`imex down`."""

import click

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.lock import is_locked, stop_cluster


@click.command(
    name="down",
    help="""Stop a cluster that imex up started, from any shell, and remove everything but its logs.

    \b
    Try:
      imex up --racks 2 --name trial --detach
      imex down --name trial""",
)
@click.option("--name", default="imex", show_default=True, help="The name of the cluster.")
def command(name: str) -> None:
    if not is_locked(name):
        raise Rejected(f"cluster {name} is not running: there is nothing to stop")
    stop_cluster(name)
    click.echo(f"cluster {name} is stopped", err=True)
