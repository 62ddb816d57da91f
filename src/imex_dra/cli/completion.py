"""`imex completion`, and completion for kubectl of `kubectl imex …`."""

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    name="completion",
    help="""Print a script that completes commands and options in your shell.

    \b
    Examples:
      source <(imex completion bash)                                 # in ~/.bashrc
      source <(imex completion zsh)                                  # in ~/.zshrc
      imex completion fish > ~/.config/fish/completions/imex.fish

    `kubectl imex …` is completed by kubectl's own completion, if kubectl_complete-imex is on the PATH; it is
    installed together with imex.""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "imex", "_IMEX_COMPLETE").source())


def complete_for_kubectl() -> None:
    """The program kubectl_complete-imex: gets the words of the line, the last one incomplete, and prints a
    completion per line, then a directive: 0 if file names are wanted, or else 4.
    """
    from imex_dra.cli import imex

    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(imex, {}, "imex", "_IMEX_COMPLETE").get_completions(words, incomplete)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(":4" if all(item.type == "plain" for item in found) else ":0")
