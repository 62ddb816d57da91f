"""`imex down`."""

import click

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.hold import end, is_held


@click.command(
    name="down",
    help="""End a cluster that imex up started, in whichever shell, and remove everything of it but logs.

    \b
    Try:
      imex up --racks 2 --name trial --detach
      imex down --name trial""",
)
@click.option("--name", default="imex", show_default=True, help="Which one.")
def command(name: str) -> None:
    if not is_held(name):
        raise Rejected(f"no cluster {name} runs: nothing to end")
    end(name)
    click.echo(f"cluster {name} is gone", err=True)
