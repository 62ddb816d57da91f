"""Every fenced block in the documentation is of a known kind, and is checked.

Manifests are linted. Command lines of imex, kubectl and make are compared with the real programs: the command and
its options exist. Other programs (helm, podman, …) are listed here: what they do is not executed.
"""

import re
import shlex
import subprocess
from functools import cache

import click
import pytest
import yaml

from imex_dra.cli import imex
from imex_dra.lint.findings import Severity
from tests.docs.pages import ALL_BLOCKS, Block, command_lines
from tests.lint.marked import findings, found, marked
from tests.paths import ROOT

SCREEN = ""
"""Output of a program, a picture, or an error message. Lines that start with `$ ` are commands."""
KINDS = {SCREEN, "sh", "console", "yaml", "json", "python"}
NOT_EXECUTED = {
    ".venv/bin/python",
    "awk",
    "cat",
    "curl",
    "export",
    "git",
    "helm",
    "podman",
    "soft-nvidia-imex",
    "soft-nvidia-imex-ctl",
    "source",
    "test",
    "unset",
    "xargs",
}

COMMANDS = [
    (block, line)
    for block in ALL_BLOCKS
    for line in command_lines(block)
    if block.kind in ("sh", "console", SCREEN)
]


def test_every_block_is_of_a_known_kind() -> None:
    assert [str(block) for block in ALL_BLOCKS if block.kind not in KINDS] == []
    assert len(ALL_BLOCKS) > 80
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.kind == "yaml"], ids=str)
def test_a_manifest_has_no_finding_but_those_that_it_names(block: Block) -> None:
    list(yaml.safe_load_all(block.text))
    if marked(block.text):
        assert found(block.text) == marked(block.text)
    else:
        assert [finding for finding in findings(block.text) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.kind == "python"], ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[f"{block}-{line[:30]}" for block, line in COMMANDS])
def test_a_command_line_names_commands_and_options_that_exist(block: Block, line: str) -> None:
    assert wrong(line) == ""


def wrong(line: str) -> str:
    """What does not exist in a command line; empty if all of it does."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    pipes = [index for index, word in enumerate(words) if word == "|"]
    for start, end in zip([-1, *pipes], [*pipes, len(words)], strict=True):
        if problem := _wrong(words[start + 1 : end]):
            return problem
    return ""


def _wrong(words: list[str]) -> str:
    while words and re.fullmatch(r"[A-Z_]+=.*|sudo", words[0]):
        words = words[1:]
    if not words:
        return ""
    program, *arguments = words
    if program == "kubectl" and arguments[:1] == ["imex"]:
        program, arguments = "imex", arguments[1:]
    match program:
        case "imex":
            return _wrong_imex(imex, arguments)
        case "kubectl":
            return _wrong_kubectl(arguments)
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            unknown = [word for word in arguments if "=" not in word and word not in targets]
            return f"there is no make {unknown[0]}" if unknown else ""
    return "" if program in NOT_EXECUTED else f"{program}: neither checked nor listed"


def _wrong_imex(command: click.Command, words: list[str]) -> str:
    context = click.Context(command)
    if isinstance(command, click.Group):
        # `imex migrate FILE` is `imex migrate files FILE`.
        names = command.list_commands(context)
        name = words[0] if words and words[0] in names else "files" if "files" in names else ""
        if words and not words[0].startswith("-") and not name and not (ROOT / words[0]).is_file():
            return f"there is no command {words[0]}"
        if name:
            found = command.get_command(context, name)
            assert found is not None
            return _wrong_imex(found, words[1:] if words[0] == name else words)
    known = {
        option for parameter in command.get_params(context) for option in parameter.opts + parameter.secondary_opts
    }
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    unknown = [option for option in given if option not in known and option != "--help"]
    return f"{command.name} has no option {unknown[0]}" if unknown else ""


def _wrong_kubectl(words: list[str]) -> str:
    options = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
    verbs = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    verb = next((word for word in verbs if word in _kubectl_verbs()), "")
    if not verb:
        return f"kubectl has no command among {verbs}"
    known = _kubectl_help(verb, *(["clusterrolebinding"] if "clusterrolebinding" in words else []))
    unknown = [option for option in options if f"{option}=" not in known and option != "--help"]
    return f"kubectl {verb} has no option {unknown[0]}" if unknown else ""


@cache
def _kubectl_verbs() -> frozenset[str]:
    return frozenset(re.findall(r"^  ([a-z-]+) ", _kubectl(), re.MULTILINE))


@cache
def _kubectl_help(*command: str) -> str:
    return _kubectl(*command, "--help") + _kubectl("options")


@cache
def _kubectl(*arguments: str) -> str:
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("imex stats", "there is no command stats"),
        ("imex verify --everywhere", "verify has no option --everywhere"),
        ("kubectl imex lint --loud x.yaml", "lint has no option --loud"),
        ("imex migrate --overwrite x.yaml", "files has no option --overwrite"),
        ("make tests", "there is no make tests"),
        ("kubectl get pods --everywhere", "kubectl get has no option --everywhere"),
        ("kubectl obtain pods", "kubectl has no command among ['obtain', 'pods']"),
        ("frobnicate", "frobnicate: neither checked nor listed"),
        ("cat x | imex stats", "there is no command stats"),
        ("imex verify -n team-a mpijob/train", ""),
        ("kubectl get pods --all-namespaces", ""),
    ],
)
def test_a_wrong_command_line_is_noticed(line: str, problem: str) -> None:
    assert wrong(line) == problem
