"""`imex up` and `imex down`: what they reject or build before they start anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imex_dra.base.errors import ImexError
from imex_dra.cli import imex
from imex_sandbox.cluster import lifecycle
from imex_sandbox.kubelet import processes
from imex_sandbox.kubernetes import binaries
from tests.sandbox.kubernetes.fakego import FakeGo

HEAD = "apiVersion: sandbox.imex-dra.io/v1\nkind: Cluster\n"
BUILT = [name for name in binaries.SIMULATED_CLUSTER if name != "kubectl"]
"""The Python environment contains kubectl."""


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(imex, [str(word) for word in words], prog_name="imex")


def error_of(*words: str | Path) -> str:
    """The error message. `imex` prints an ImexError after click returns."""
    result = invoke(*words)
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, ImexError) else result.output


# The Python environment has a kubectl.
BUILT = [name for name in binaries.SIMULATED_CLUSTER if name != "kubectl"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{HEAD}racks: [{{name: a, profile: gb200-nvl72}}]\n")
    return path


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    fake = FakeGo(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """For each start of a cluster, how it was started and which programs were missing at that moment."""
    recorded: list[tuple[str, list[str]]] = []

    def record(how: str) -> None:
        recorded.append((how, binaries.missing(binaries.SIMULATED_CLUSTER)))

    monkeypatch.setattr(lifecycle, "run", lambda options: record("foreground"))
    monkeypatch.setattr(lifecycle, "start_detached", lambda options: record("detached"))
    return recorded


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--racks", "0"], "0 is not in the range 1<=x<=256"),
        (["--racks", "many"], "'many' is not a valid integer"),
        (["--profile", "gb100"], "'gb100' is not one of 'gb200-nvl72'"),
        (["--name", "My Cluster"], "'My Cluster' is not a lower-case DNS label"),
        (["no-such-file.yaml"], "'no-such-file.yaml' does not exist"),
        (["--stand-ins", "no-such-file.yaml"], "'no-such-file.yaml' does not exist"),
    ],
)
def test_an_invalid_flag_is_rejected(words: list[str], error: str) -> None:
    assert error in error_of("up", *words)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("racks: []", "a cluster has 1 to 256 racks - at `$.racks`"),
        ("racks: [{name: a, profile: gb100}]", "unknown profile 'gb100': choose one of gb200-nvl72"),
        ("racks: [{name: a, profile: gb200-nvl72, slots: 3}]", "unknown field `slots`"),
        ("nodes: 3", "unknown field `nodes`"),
        ("racks: [", "is not a valid cluster file"),
    ],
)
def test_an_invalid_file_is_rejected_with_its_name_and_the_field(file: Path, text: str, error: str) -> None:
    file.write_text(f"{HEAD}{text}\n")
    message = error_of("up", file)
    assert str(file) in message
    assert error in message


def test_a_cluster_file_excludes_racks_and_profile(file: Path) -> None:
    assert "omit --racks and --profile" in error_of("up", file, "--racks", "2")


@pytest.mark.parametrize(
    ("flags", "how", "missing"),
    [
        ([], "foreground", []),
        (["--detach"], "detached", []),
        (["--hollow"], "foreground", ["mpi-operator"]),
    ],
)
def test_missing_programs_are_built_before_the_cluster_starts(
    go: FakeGo, starts: list[tuple[str, list[str]]], file: Path, flags: list[str], how: str, missing: list[str]
) -> None:
    assert binaries.missing(binaries.SIMULATED_CLUSTER) == BUILT
    result = invoke("up", file, "--control-plane=kubernetes", *flags)
    assert result.exit_code == 0, result.output
    assert "building control-plane: done" in result.output
    assert starts == [(how, missing)]


def test_nothing_is_built_if_all_programs_exist(
    go: FakeGo, starts: list[tuple[str, list[str]]], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in binaries.SIMULATED_CLUSTER:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert invoke("up", file, "--control-plane=kubernetes").exit_code == 0
    assert go.built() == []
    assert starts == [("foreground", [])]


def test_nothing_is_built_for_the_embedded_control_plane(
    go: FakeGo, starts: list[tuple[str, list[str]]], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IMEX_CONTROL_PLANE", raising=False)
    assert invoke("up", file).exit_code == 0
    assert go.built() == []
    assert starts == [("foreground", BUILT)]


def test_a_failed_build_is_reported_and_nothing_starts(
    go: FakeGo, starts: list[tuple[str, list[str]]], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_BUILD", "echo 'no network' >&2; exit 1")
    message = error_of("up", file, "--control-plane=kubernetes")
    assert "go could not build imex-dra.io/sandbox/kubernetes:" in message
    assert "no network" in message
    assert starts == []


def test_a_missing_system_tool_is_reported_with_the_package_that_contains_it(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(binaries, "TOOLS", ("openssl",))
    monkeypatch.setenv("PATH", "/nowhere")
    assert error_of("up", file) == "openssl was not found: install the package openssl"


def test_missing_user_namespaces_are_reported_before_anything_is_built(
    go: FakeGo, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(processes, "UNSHARE", ("sh", "-c", "echo 'not permitted' >&2; exit 1"))
    assert "(not permitted): allow unprivileged user namespaces" in error_of("up", file)
    assert go.built() == []


def test_down_reports_that_no_such_cluster_is_running() -> None:
    message = error_of("down", "--name", "no-such-cluster")
    assert message == "cluster no-such-cluster is not running: there is nothing to stop"


@pytest.mark.parametrize("command", ["up", "down"])
def test_help_contains_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Try:\n" in result.output
    assert f"  imex {command} " in result.output
