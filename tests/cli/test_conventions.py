"""What all commands for people have in common: help that teaches, formats, exit codes, one sentence for an error.

`tests/sandbox/diagnosed` runs them with a reader who may read nothing.
"""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from tests.cli.test_status import written
from tests.migrate.test_migration import LEGACY

CONTEXT = imex.make_context("imex", ["version"])


def find(*names: str) -> click.Command:
    command: click.Command | None = imex
    for name in names:
        assert isinstance(command, click.Group)
        command = command.get_command(CONTEXT, name)
    assert command is not None
    return command


FOR_PEOPLE = {
    "status": (),
    "verify": (),
    "explain": ("pod", "worker-0"),
    "preflight": (),
    "collect": (),
    "lint": ("job.yaml",),
    "migrate files": ("job.yaml",),
    "migrate cluster": (),
    "forget-node": ("r0-n01",),
}
"""With arguments that it needs."""
OF_A_CLUSTER = [name for name in FOR_PEOPLE if name not in ("lint", "migrate files")]
WITH_OBJECTS = ["status", "verify -n team", "explain pod worker-0 -n team", "preflight", "migrate cluster"]


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(imex, [str(one) for one in arguments], prog_name="imex", env=environment)


def test_every_command_is_one_for_people_or_a_program() -> None:
    others = {"controller", "node", "webhook", "migrate", "completion"}
    known = {name.split()[0] for name in FOR_PEOPLE} | others
    assert set(imex.list_commands(CONTEXT)) - known - {"version", *sandbox()} == set()


def sandbox() -> set[str]:
    return {"allreduce", "bandwidth", "demo", "down", "fault", "simulate-node", "up"}


@pytest.mark.parametrize("name", [*FOR_PEOPLE, "migrate", "completion", "version"])
def test_help_has_an_example_of_the_command(name: str) -> None:
    text = find(*name.split()).help or ""
    examples = text.partition("Examples:")[2]
    assert f"imex {name.removesuffix(' files')}" in examples
    assert len(examples.strip().splitlines()) > 1


@pytest.mark.parametrize("name", ["controller", "node", "webhook", *sorted(sandbox())])
def test_help_of_a_program_has_an_example(name: str) -> None:
    """Of some it is that of argparse."""
    command = [sys.executable, "-m", "imex_dra.cli", name, "--help"]
    help = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"imex {name} " in help.replace("\n", " ").partition(f"imex {name} ")[2], help


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_help_has_the_exit_codes(name: str) -> None:
    lines = (find(*name.split()).help or "").partition("Exit codes:")[2].split("\n\n")[0].split("\n")
    codes = [line.split()[0] for line in lines if line.strip()]
    assert codes in (["0", "1", "2"], ["0", "2"])


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_every_option_has_help(name: str) -> None:
    options = [one for one in find(*name.split()).params if isinstance(one, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", [*FOR_PEOPLE, "version"])
def test_every_command_writes_json_and_yaml(name: str) -> None:
    output = next(one for one in find(*name.split()).params if one.name == "output")
    assert "-o" in output.opts
    assert isinstance(output.type, click.Choice)
    assert {"text", "json", "yaml"} <= set(output.type.choices)


@pytest.mark.parametrize("line", WITH_OBJECTS)
@pytest.mark.parametrize("finding", ["", "IMEX303"])
def test_json_and_yaml_are_the_same(line: str, finding: str, tmp_path: Path) -> None:
    file = written(tmp_path, *([finding] if finding else []))
    as_json, as_yaml = (run(*line.split(), "-o", format, "--from", file) for format in ("json", "yaml"))
    assert as_json.exit_code == as_yaml.exit_code
    assert json.loads(as_json.stdout) == yaml.safe_load(as_yaml.stdout)


@pytest.mark.parametrize("command", ["lint", "migrate"])
def test_json_and_yaml_of_manifests_are_the_same(command: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(LEGACY)
    as_json, as_yaml = (run(command, "-o", format, file) for format in ("json", "yaml"))
    content = json.loads(as_json.stdout)
    assert content == yaml.safe_load(as_yaml.stdout)
    assert as_json.exit_code == as_yaml.exit_code
    assert "Job team-a/train" in as_json.stdout


def test_the_version_as_json() -> None:
    assert json.loads(run("version", "-o", "json").stdout).keys() == {"version"}


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_without_a_cluster_there_is_one_sentence_and_exit_code_2(name: str) -> None:
    done = run(*name.split(), *FOR_PEOPLE[name], KUBECONFIG="/no/such/file")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "imex: KUBECONFIG is /no/such/file, and there is no such file: export KUBECONFIG"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_a_context_can_be_chosen(name: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({**kubeconfig("https://127.0.0.1:1"), "current-context": "of another cluster"}))
    command = [*name.split(), *FOR_PEOPLE[name], "--kubeconfig", str(file)]
    done = run(*command, "--context", "y")
    assert (done.exit_code, done.stderr) == (2, f"imex: {file} has no context y; it has: x\n")
    assert "no response from 127.0.0.1" in run(*command, "--context", "x").stderr


@pytest.mark.parametrize("name", ["lint", "migrate"])
def test_without_the_file_there_is_one_sentence_and_exit_code_2(name: str) -> None:
    done = run(name, "/no/such/file.yaml")
    assert (done.exit_code, done.stderr) == (2, "imex: /no/such/file.yaml: No such file or directory\n")


def kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {"token": "x"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_a_server_that_does_not_answer_is_one_sentence_and_exit_code_2(name: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(kubeconfig("https://127.0.0.1:1")))
    done = run(*name.split(), *FOR_PEOPLE[name], "--kubeconfig", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("imex: ")
    assert "no response from 127.0.0.1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_is_no_finding_and_has_no_traceback(tmp_path: Path) -> None:
    """While the API server does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{server.getsockname()[1]}")))
        command = [sys.executable, "-m", "imex_dra.cli", "verify", f"--kubeconfig={file}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            server.settimeout(60)
            with server.accept()[0]:
                process.send_signal(signal.SIGINT)
                output = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, ("", ""))


def test_watch_has_no_json(tmp_path: Path) -> None:
    done = run("status", "--watch", "-o", "json", "--from", written(tmp_path))
    assert done.exit_code == 2
    assert "--watch draws, and has no -o json" in done.stderr


@pytest.mark.parametrize("command", ["lint", "migrate"])
def test_a_bug_in_a_command_of_files_is_no_finding(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of this test")

    monkeypatch.setattr(f"imex_dra.cli.{command}.{command}", fail)
    file = tmp_path / "job.yaml"
    file.write_text(LEGACY)
    done = run(command, file)
    assert done.exit_code == 2
    assert "ZeroDivisionError: of this test\nimex: this is a bug of imex; please report it" in done.stderr


@pytest.mark.parametrize("command", ["lint", "migrate"])
def test_files_without_an_object_are_named_and_no_success(command: str, tmp_path: Path) -> None:
    empty, job, directory = tmp_path / "empty.yaml", tmp_path / "job.yaml", tmp_path / "chart"
    empty.write_text("# nothing\n")
    job.write_text(LEGACY)
    directory.mkdir()
    (directory / "values.yaml").write_text("replicas: 4\n")
    done = run(command, empty, directory)
    assert (done.exit_code, done.stdout) == (2, "")
    sentence = "no Kubernetes object was found, and nothing was checked"
    assert done.stderr == f"imex: {empty}, {directory}: {sentence}\n"
    done = run(command, empty, job)
    assert done.exit_code != 2
    assert done.stderr.startswith(f"imex: {empty}: no Kubernetes object was found\n")
    assert "no Kubernetes object" not in run(command, tmp_path).stderr


@pytest.mark.parametrize("name", ["status", "verify", "explain pod worker-0 -n team"])
def test_a_bug_is_no_finding(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of this test")

    monkeypatch.setattr("imex_dra.cli.reading.Reader.cluster", fail)
    done = run(*name.split(), "--from", written(tmp_path))
    assert done.exit_code == 2
    assert "ZeroDivisionError: of this test\nimex: this is a bug of imex; please report it" in done.stderr
