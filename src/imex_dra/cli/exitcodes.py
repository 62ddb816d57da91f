"""Exit codes of the commands for people, and what every error becomes."""

import sys
import traceback
from collections.abc import Callable

import click

from imex_dra.base.errors import ImexError

FINDINGS = 1
COULD_NOT_RUN = 2
INTERRUPTED = 130
"""By Ctrl-C, as a shell says it. click would exit with 1, and that means findings."""


def or_exit(run: Callable[[], int]) -> None:
    """Ends the program: with the returned code, with COULD_NOT_RUN, or INTERRUPTED."""
    try:
        sys.exit(run())
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise  # wrong usage, or a question answered with no: click has an exit code for each
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Python would exit with 1, and that means findings.
        traceback.print_exception(error)
        click.echo("imex: this is a bug of imex; please report it with the lines above", err=True)
    sys.exit(COULD_NOT_RUN)
