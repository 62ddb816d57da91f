"""`imex up` and `imex down`: what they refuse, in which words, before anything is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from imex_dra.base.errors import ImexError
from imex_dra.cli import imex
from imex_dra.sandbox.kubelet import namespaces
from imex_dra.sandbox.kubernetes import binaries

HEAD = "apiVersion: sandbox.imex-dra.io/v1\nkind: Cluster\n"


def refusal(*words: str | Path) -> str:
    """What it says; errors of ours are what `imex` prints."""
    result = CliRunner().invoke(imex, [str(word) for word in words], prog_name="imex")
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, ImexError) else result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{HEAD}racks: [{{name: a, profile: gb200-nvl72}}]\n")
    return path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--racks", "0"], "0 is not in the range 1<=x<=256"),
        (["--racks", "many"], "'many' is not a valid integer"),
        (["--profile", "gb100"], "'gb100' is not one of 'gb200-nvl72'"),
        (["--control-plane", "k3s"], "'k3s' is not 'kubernetes'"),
        (["--name", "My Cluster"], "'My Cluster' is no lower-case DNS label"),
        (["no-such-file.yaml"], "'no-such-file.yaml' does not exist"),
        (["--stand-ins", "no-such-file.yaml"], "'no-such-file.yaml' does not exist"),
    ],
)
def test_bad_flags(words: list[str], complaint: str) -> None:
    assert complaint in refusal("up", *words)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("racks: []", "a cluster has 1 to 256 racks - at `$.racks`"),
        ("racks: [{name: a, profile: gb100}]", "no 'gb100'; there are gb200-nvl72"),
        ("racks: [{name: a, profile: gb200-nvl72, slots: 3}]", "unknown field `slots`"),
        ("nodes: 3", "unknown field `nodes`"),
        ("racks: [", "does not describe a cluster"),
    ],
)
def test_a_bad_file_is_named_with_the_place(file: Path, text: str, complaint: str) -> None:
    file.write_text(f"{HEAD}{text}\n")
    said = refusal("up", file)
    assert str(file) in said
    assert complaint in said


def test_a_file_and_the_short_form_exclude_each_other(file: Path) -> None:
    assert "leave out --racks and --profile" in refusal("up", file, "--racks", "2")


def test_without_kubernetes_it_says_what_builds_it(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(binaries, "CONTROL_PLANE", ("kube-nothing",))
    said = refusal("up", file)
    assert said.startswith(
        "kube-nothing was not found: run `make kube` in a source checkout, which builds it, or set"
    )


def test_without_a_tool_of_the_machine_it_says_where_that_comes_from(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(binaries, "_searched", lambda name: [] if name == "openssl" else ["/usr/bin", "/bin"])
    monkeypatch.setattr(binaries, "TOOLS", ("openssl",))
    assert refusal("up", file) == "openssl was not found: install the package openssl"


def test_where_containers_can_not_be_confined_it_says_so_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(binaries, "CONTROL_PLANE", ())
    monkeypatch.setattr(namespaces, "UNSHARE", ("sh", "-c", "echo 'not permitted' >&2; exit 1"))
    assert refusal("up", file).startswith("containers can't be confined here (not permitted): allow unprivileged")


def test_down_without_a_cluster_says_so() -> None:
    assert refusal("down", "--name", "no-such-cluster") == "no cluster no-such-cluster runs: nothing to end"


@pytest.mark.parametrize("command", ["up", "down"])
def test_help_teaches_with_an_example(command: str) -> None:
    result = CliRunner().invoke(imex, [command, "--help"], prog_name="imex")
    assert result.exit_code == 0
    assert "Try:\n" in result.output
    assert f"  imex {command} " in result.output
