"""`imex lint`. Reads files and prints; everything else is in `imex_dra.lint`."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from imex_dra import __version__
from imex_dra.base.errors import Unreadable
from imex_dra.cli.exitcodes import COULD_NOT_RUN, FINDINGS, or_exit
from imex_dra.lint import report
from imex_dra.lint.documents import Source, read_source
from imex_dra.lint.findings import Finding, Severity
from imex_dra.lint.manifests import load
from imex_dra.lint.rule import Rule
from imex_dra.lint.rules import RULES, find_rule, lint

_STDIN = "-"
_SUFFIXES = {".yaml", ".yml", ".json"}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def _find(id: str) -> Rule:
    if rule := find_rule(id):
        return rule
    raise click.BadParameter(f"there is no rule {id}; the rules are {RULES[0].id} to {RULES[-1].id}")


def _ids(_: click.Context, __: click.Parameter, ids: tuple[str, ...]) -> list[str]:
    return [_find(id).id for id in ids]


def _explain(context: click.Context, _: click.Parameter, id: str | None) -> None:
    if id:
        click.echo(report.explanation(_find(id)), nl=False)
        context.exit()


@click.command(
    name="lint",
    help="""Check manifests before they are applied.

    Finds what cannot work, or works only by chance: a claim template that no ComputeDomain has, a container that
    does not list the claim, pods that are not kept in one NVLink partition, channels requested in the old way, and
    more. Needs no cluster.

    FILE is a file of YAML or JSON, a directory (its *.yaml, *.yml and *.json files, also in subdirectories), or -
    for standard input. Pods are found in Pod, Job, JobSet, LeaderWorkerSet, MPIJob, RayCluster, Deployment and all
    other kinds with a pod template. The files are checked together: give those of a workload and of its
    ComputeDomain. What is not in them is never an error.

    To accept a finding, add the comment `# imex-lint: ignore IMEX153` to its line, or above it; or use --ignore.

    \b
    Exit codes:
      0  no error; with --strict: no finding
      1  findings
      2  could not run: a file is missing, or is no YAML, or no file has an object

    \b
    Examples:
      imex lint job.yaml compute-domain.yaml
      imex lint --strict manifests/
      helm template chart | imex lint -n team-a -
      imex lint --explain IMEX140""",
)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--ignore", callback=_ids, metavar="ID", multiple=True, help="Leave out this rule. May be repeated.")
@click.option("--strict", is_flag=True, help="Warnings and notes are findings, too: exit with 1.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of objects that name none.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml", "sarif"]),
    default="text",
    show_default=True,
    help="Format of the findings.",
)
@click.option(
    "--explain",
    metavar="ID",
    is_eager=True,
    callback=_explain,
    expose_value=False,
    help="Describe a rule, and exit.",
)
def command(paths: tuple[str, ...], ignore: list[str], strict: bool, namespace: str, output: str) -> None:
    def run() -> int:
        sources = _read_all(paths)
        findings = lint(load(sources, namespace), ignore)
        _print(findings, output, len(sources))
        return FINDINGS if report.fails(findings, strict=strict) else 0

    or_exit(run)


def _read_all(paths: tuple[str, ...]) -> list[Source]:
    """Ends the program if something cannot be read, after each argument was tried."""
    sources: dict[str, Source] = {}
    problems: list[Unreadable] = []
    empty: list[str] = []
    for path in paths:
        try:
            files = list(manifest_files(path))
            for file in files:
                sources[file] = sources.get(file) or read_source(file, read_text(file))
            if not load(sources[file] for file in files).objects:
                empty.append(path)
        except Unreadable as error:
            problems.append(error)
    for problem in problems:
        click.echo(f"imex: {problem}", err=True)
    if problems:
        sys.exit(COULD_NOT_RUN)
    check_not_empty(empty, len(paths))
    return list(sources.values())


def check_not_empty(empty: Sequence[str], arguments: int) -> None:
    """Names the arguments without objects. Raises Unreadable if there are no others: then nothing was checked."""
    names = ", ".join("standard input" if path == _STDIN else path for path in empty)
    if len(empty) == arguments:
        raise Unreadable(f"{names}: no Kubernetes object was found, and nothing was checked")
    if empty:
        click.echo(f"imex: {names}: no Kubernetes object was found", err=True)


def manifest_files(path: str) -> Iterator[str]:
    if path != _STDIN and Path(path).is_dir():
        found = sorted(str(file) for file in Path(path).rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        if not found:
            raise Unreadable(f"{path}: the directory has no *.yaml, *.yml or *.json file")
        yield from found
    else:
        yield path


def read_text(file: str) -> str:
    """Without a byte order mark. Raises Unreadable."""
    try:
        content = sys.stdin.buffer.read() if file == _STDIN else Path(file).read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"{file}:{line}: the file is not UTF-8") from error


def _print(findings: list[Finding], output: str, files: int) -> None:
    match output:
        case "json":
            click.echo(json.dumps(report.plain(findings), indent=2, ensure_ascii=False))
        case "sarif":
            click.echo(json.dumps(report.sarif(findings, __version__), indent=2, ensure_ascii=False))
        case "yaml":
            import yaml

            click.echo(yaml.safe_dump(report.plain(findings), sort_keys=False, allow_unicode=True), nl=False)
        case _:
            for finding in findings:
                click.echo(_colored(finding), color=_colors())
            click.echo(report.summary(findings, files), err=True)


def _colored(finding: Finding) -> str:
    label = f"{finding.severity} {finding.id}"
    return report.line_of(finding).replace(label, click.style(label, fg=_COLORS[finding.severity], bold=True), 1)


def _colors() -> bool | None:
    """Only at a terminal, which click finds out; never with NO_COLOR."""
    return False if os.environ.get("NO_COLOR") else None
