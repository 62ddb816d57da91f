"""`imex verify` and `imex explain`: arguments, formats, exit codes."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from imex_dra.diagnose.bundle import pack
from tests.cli.test_status import written
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(imex, [str(argument) for argument in arguments], prog_name="imex")


def test_explain_shows_the_chain_the_evidence_and_the_next_step(tmp_path: Path) -> None:
    done = run("explain", "pod", "worker-1", "-n", "team", "--from", written(tmp_path, "IMEX303"))
    assert done.exit_code == 1
    assert done.stdout.startswith("Pod team/worker-1\n ✓ pod            worker-1 is Pending")
    assert " ✗ fabric         broken on r0-n01\n" in done.stdout
    assert "  seen: GPU 2 is broken: not registered\n  → repair the node\n" in done.stdout
    assert done.stdout.endswith("first broken link: fabric (IMEX303)\n")


@pytest.mark.parametrize("arguments", [["pod/worker-1"], ["pod", "worker-1"], ["PODS", "worker-1"]])
def test_explain_takes_kinds_as_kubectl_does(tmp_path: Path, arguments: list[str]) -> None:
    done = run("explain", *arguments, "-n", "team", "--from", written(tmp_path))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no findings")


def test_explain_as_json_names_the_broken_link(tmp_path: Path) -> None:
    file = written(tmp_path, "IMEX303")
    content = json.loads(run("explain", "node/r0-n01", "--from", file, "-o", "json").stdout)
    assert content["brokenLink"] == "fabric"
    assert content == yaml.safe_load(run("explain", "node/r0-n01", "--from", file, "-o", "yaml").stdout)


def test_verify_lists_every_check(tmp_path: Path) -> None:
    done = run("verify", "-n", "team", "--from", written(tmp_path, "IMEX402"))
    assert done.exit_code == 1
    assert "✗ claims are allocated,reserved: 1 of 3\n" in done.stdout
    assert "error IMEX402 Pod team/worker-1\n" in done.stdout
    assert done.stdout.endswith("1 error\n")


def test_verify_of_another_namespace_and_of_all(tmp_path: Path) -> None:
    file = written(tmp_path, "IMEX303")
    assert run("verify", "-n", "other", "--from", file).exit_code == 0
    assert run("verify", "-A", "--from", file).exit_code == 1
    content = json.loads(run("verify", "-n", "team", "mpijob/train", "--from", file, "-o", "json").stdout)
    assert [finding["id"] for finding in content["findings"]] == ["IMEX303"]


def test_strict_fails_if_a_check_could_not_be_made(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert run("verify", "-n", "team", "--from", file).exit_code == 0
    assert run("verify", "-n", "team", "--strict", "--from", file).exit_code == 1


def test_verify_explains_a_finding() -> None:
    done = run("verify", "--explain", "imex402")
    assert done.exit_code == 0
    assert done.stdout.startswith("IMEX402 (error): A job needs more nodes than any partition has free\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "pod"], "give a kind and a name"),
        (["explain", "secret", "x"], "unknown kind secret; known kinds: pod, claim, computedomain, node"),
        (["explain", "pod", "x"], "imex: there is no pod default/x"),
        (["verify", "worker-0"], "give a kind and a name, as in: pod/worker-0"),
        (["verify", "pod/x"], "imex: there is no pod of pod default/x"),
        (["verify", "-n", "taem"], "imex: there is no namespace taem; check -n, or"),
        (["explain", "pod", "x", "-n", "taem"], "imex: there is no namespace taem; check -n, or"),
        (["verify", "--explain", "IMEX999"], "there is no finding IMEX999"),
    ],
)
def test_what_cannot_run_exits_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments, "--from", written(tmp_path))
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_bundle_is_read_offline(tmp_path: Path) -> None:
    broken = Broken()
    BREAKINGS["IMEX303"](broken)
    file = tmp_path / "bundle.tar.gz"
    file.write_bytes(pack(broken.snapshot(), {}))
    assert "first broken link: fabric (IMEX303)" in run("explain", "node", "r0-n01", "--from", file).stdout
    assert "error IMEX303 Node r0-n01" in run("status", "--from", file).stdout
    assert run("verify", "-n", "team", "--from", file).exit_code == 1


def test_preflight_prints_its_checks_and_exits_with_1_on_findings(tmp_path: Path) -> None:
    done = run("preflight", "--from", written(tmp_path))
    assert done.exit_code == 0
    assert "✓ Kubernetes has DRA, and no kubelet is too old\n" in done.stdout
    done = run("preflight", "--from", written(tmp_path, "IMEX212"))
    assert done.exit_code == 1
    assert "✗ the container runtimes support CDI\n" in done.stdout
    content = json.loads(run("preflight", "-o", "json", "--from", written(tmp_path, "IMEX212")).stdout)
    assert [finding["id"] for finding in content["findings"]] == ["IMEX212"]
