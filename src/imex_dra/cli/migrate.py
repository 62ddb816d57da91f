"""`imex migrate`. Reads and writes files and prints; everything else is in `imex_dra.migrate` and
`imex_dra.diagnose.retirement`."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from imex_dra.base.errors import Unreadable
from imex_dra.base.files import write_atomically
from imex_dra.cli.exitcodes import FINDINGS, or_exit
from imex_dra.cli.lint import check_not_empty, manifest_files, read_text
from imex_dra.cli.reading import (
    Reader,
    output_option,
    print_lines,
    print_plain,
    reading_options,
    width,
)
from imex_dra.diagnose.report import retirement_lines
from imex_dra.diagnose.retirement import retirement
from imex_dra.lint import report
from imex_dra.lint.findings import Severity
from imex_dra.migrate.migration import Change, Migration, migrate

_STDIN = "-"
_COLORS = {"+": "green", "-": "red", "@": "cyan"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _FilesByDefault(click.Group):
    """`imex migrate FILE` is `imex migrate files FILE`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["files", *args]
        return super().parse_args(context, args)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        own = super().shell_complete(context, incomplete)
        if not incomplete.startswith("-"):
            return [CompletionItem(incomplete, type="file"), *own]
        known = {item.value for item in own}
        options = files.shell_complete(click.Context(files, context, "files"), incomplete)
        return own + [item for item in options if item.value not in known]


@click.group(
    name="migrate",
    cls=_FilesByDefault,
    help="""Change manifests of the old model to claims, or list what uses that model in a cluster.

    \b
    Examples:
      imex migrate job.yaml              # shows a diff, and changes nothing
      imex migrate --write manifests/
      imex migrate cluster""",
)
def command() -> None:
    pass


@command.command(
    name="files",
    context_settings={"auto_envvar_prefix": "IMEX"},
    help="""Change manifests to a ComputeDomain per workload, with claims and affinity.

    Workloads that ask for a channel by the variable NVIDIA_IMEX_CHANNELS or by mounts, as with the nvidia-imex
    DaemonSet, claim one from a ComputeDomain of their own instead. Of several workloads that share one, all but
    the first get one of their own. Pods that nothing keeps in one NVLink partition get affinity. Nothing
    else is changed: comments, order and format stay. What `# imex-lint: ignore IMEX122` (or IMEX140, IMEX150,
    IMEX151) accepts stays, too.

    Shows a diff, and writes only with --write. Then it lists what is left to do by hand, as imex lint does.

    FILE is a file, a directory, or - for standard input. The files are read together: give those of a workload and
    of its ComputeDomain.

    \b
    Exit codes:
      0  nothing is left to do
      1  changes that were not written, or findings that are left
      2  could not run: a file is missing, or is no YAML, or no file has an object

    \b
    Examples:
      imex migrate job.yaml                     # shows a diff
      imex migrate --write -n team-a manifests/
      imex migrate -o json job.yaml             # the changes, what is left to do, and the files after it""",
)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--write", is_flag=True, help="Write the files.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of objects that name none.")
@output_option
def files(paths: tuple[str, ...], write: bool, namespace: str, output: str) -> None:
    def run() -> int:
        texts = {file: read_text(file) for path in paths for file in manifest_files(path)}
        if write and _STDIN in texts:
            raise click.UsageError("standard input cannot be written")
        done = migrate(texts, namespace)
        empty = [path for path in paths if done.empty.issuperset(manifest_files(path))]
        check_not_empty(empty, len(paths))
        if output == "text":
            for line in done.diff():
                click.echo(click.style(line, fg=_COLORS.get(line[0])), nl=False)
        for name in done.changed if write else ():
            _write(Path(name), done.after[name])
        if output == "text":
            _print(done, write=write)
        else:
            print_plain({**done.plain(), "written": write}, output)
        return FINDINGS if _left(done) or (done.changed and not write) else 0

    or_exit(run)


def _left(done: Migration) -> bool:
    """Notes are fine."""
    return bool(done.by_hand) or any(finding.severity is not Severity.NOTE for finding in done.findings)


def _print(done: Migration, *, write: bool) -> None:
    for change in done.changes:
        click.echo(_sentence(change), err=True)
    for change in done.by_hand:
        click.echo(f"{_sentence(change)}: change it by hand", err=True)
    for finding in done.findings:
        click.echo(report.line_of(finding), err=True)
    number = len(done.changed)
    what = f"{number} file{'' if number == 1 else 's'}"
    verb = "changed" if write else "would be changed; use --write"
    click.echo(f"{what} {verb}" if number else "nothing to change", err=True)


def _sentence(change: Change) -> str:
    return f"{change.file}:{change.line}: {change.object}: {change.message}"


def _write(path: Path, text: str) -> None:
    path = path.resolve()  # not the link to it
    try:
        mark = _BYTE_ORDER_MARK if path.read_bytes().startswith(_BYTE_ORDER_MARK) else b""
        write_atomically(path, mark + text.encode(), mode=path.stat().st_mode & 0o777)
    except OSError as error:
        # Files before it are written, and migrating them again changes nothing.
        raise Unreadable(f"{path} cannot be written: {error.strerror}; correct that, and run it again") from error


@command.command(
    name="cluster",
    context_settings={"auto_envvar_prefix": "IMEX"},
    help="""List what uses the old model in a cluster, and the order in which to retire it.

    Workloads whose pods ask for channels by NVIDIA_IMEX_CHANNELS or by mounts, the nvidia-imex DaemonSet, and
    workloads that share a ComputeDomain. Only pods that have not ended are seen, and no job that starts later.
    Changes nothing.

    \b
    Exit codes:
      0  nothing is left to do
      1  something is left to do, or could not be read
      2  could not run

    \b
    Examples:
      imex migrate cluster
      imex migrate cluster --from bundle.tar.gz -o json""",
)
@reading_options
def cluster(kubeconfig: Path | None, context: str, sources: tuple[Path, ...], output: str) -> None:
    reader = Reader(kubeconfig, context, sources)

    def run() -> int:
        found = retirement(reader.cluster())
        if output == "text":
            print_lines(retirement_lines(found, width()))
        else:
            print_plain(found.plain(), output)
        return 0 if found.finished else FINDINGS

    or_exit(run)
