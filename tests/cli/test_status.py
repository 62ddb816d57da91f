"""`imex status`: what it shows, filters, formats, exit codes."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken, claim, domain, pod, template


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(imex, ["status", *map(str, arguments)], prog_name="imex")


def written(directory: Path, *ids: str) -> Path:
    broken = Broken()
    for id in ids:
        BREAKINGS[id](broken)
    return saved(directory, broken)


def saved(directory: Path, broken: Broken) -> Path:
    file = directory / "objects.yaml"
    file.write_text(yaml.safe_dump_all([obj for found in broken.objects.values() for obj in found]))
    return file


def test_a_healthy_cluster_is_drawn_and_exits_with_0(tmp_path: Path) -> None:
    done = run("--from", written(tmp_path))
    assert done.exit_code == 0
    assert "│ 00 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │" in done.stdout
    assert "r0   0 of 2 nodes free  1 channel in use  aaaa.1" in done.stdout
    assert "r1   2 of 2 nodes free  0 channels in use  bbbb.1" in done.stdout
    assert done.stdout.endswith("no findings\n")


def test_findings_exit_with_1_and_have_a_next_step(tmp_path: Path) -> None:
    done = run("--from", written(tmp_path, "IMEX303"))
    assert done.exit_code == 1
    assert "error IMEX303 Node r0-n01\n" in done.stdout
    assert "  → repair the node\n" in done.stdout
    assert done.stdout.endswith("1 error\n")


def test_a_note_is_shown_and_exits_with_0(tmp_path: Path) -> None:
    done = run("--from", written(tmp_path, "IMEX316"))
    assert done.exit_code == 0
    assert "note IMEX316 Node r0-n01" in done.stdout
    assert "old IMEX daemons in use, to be restarted when their pods have ended: r0-n00" in done.stdout


def test_json_and_yaml_have_the_same_content(tmp_path: Path) -> None:
    file = written(tmp_path, "IMEX303")
    content = json.loads(run("--from", file, "-o", "json").stdout)
    assert content == yaml.safe_load(run("--from", file, "-o", "yaml").stdout)
    assert content["partitions"][1]["freeNodes"] == ["r1-n00", "r1-n01"]
    assert content["computeDomains"][0]["channels"] == {"r0": 7}
    assert [finding["id"] for finding in content["findings"]] == ["IMEX303"]
    assert content["findings"][0]["nextStep"] == "repair the node"


@pytest.mark.parametrize(
    ("arguments", "code", "shown", "hidden"),
    [
        (["--partition", "r1"], 0, "╭─ r1", "╭─ r0"),
        (["--partition", "aaaa.1"], 1, "╭─ r0", "╭─ r1"),
        (["-n", "other"], 0, "no findings", "team/train"),
        (["-n", "team"], 1, "IMEX303", "no findings"),
        (["--computedomain", "team/train"], 1, "team/train", "no findings"),
    ],
)
def test_filters(tmp_path: Path, arguments: list[str], code: int, shown: str, hidden: str) -> None:
    done = run("--from", written(tmp_path, "IMEX303"), *arguments)
    assert done.exit_code == code, done.output
    assert shown in done.stdout
    assert hidden not in done.stdout


def shared() -> Broken:
    """ComputeDomain team/second on r1-n00, and a pod of another namespace that uses team/train on r0-n00."""
    broken = Broken()
    broken.add("computedomains", domain("second", uid="uid-second", template="second-channel"))
    broken.add("resourceclaimtemplates", template("second-channel", uid="uid-second"))
    broken.add("pods", pod("second-0", "r1-n00", owner="Job/second", template="second-channel"))
    broken.add("resourceclaims", claim("second-0", "r1-n00", uid="uid-second"))
    for plural, one in (("pods", pod("far-0", "r0-n00")), ("resourceclaims", claim("far-0", "r0-n00"))):
        one["metadata"]["namespace"] = "other"
        broken.add(plural, one)
    return broken


@pytest.mark.parametrize(
    ("arguments", "used", "pods"),
    [
        ([], {"r0-n00": 2, "r0-n01": 1, "r1-n00": 1, "r1-n01": 0}, 4),
        (["--computedomain", "team/train"], {"r0-n00": 2, "r0-n01": 1, "r1-n00": 1, "r1-n01": 0}, 3),
        (["--computedomain", "team/second"], {"r0-n00": 2, "r0-n01": 1, "r1-n00": 1, "r1-n01": 0}, 1),
        (["-n", "team"], {"r0-n00": 2, "r0-n01": 1, "r1-n00": 1, "r1-n01": 0}, 3),
        (["-n", "other"], {"r0-n00": 2, "r0-n01": 1, "r1-n00": 1, "r1-n01": 0}, 1),
        (["--partition", "r0"], {"r0-n00": 2, "r0-n01": 1}, 3),
        (["--partition", "r1"], {"r1-n00": 1, "r1-n01": 0}, 1),
        (["--partition", "r0", "-n", "other"], {"r0-n00": 2, "r0-n01": 1}, 1),
        (["--partition", "r1", "--computedomain", "team/train"], {"r1-n00": 1, "r1-n01": 0}, 0),
    ],
)
def test_a_filter_selects_what_is_counted_and_never_what_is_used_on_a_node(
    tmp_path: Path, arguments: list[str], used: dict[str, int], pods: int
) -> None:
    shown = run("--from", saved(tmp_path, shared()), *arguments).stdout
    # The racks stand side by side.
    assert [int(number) for number in re.findall(r"(\d+)/16 │", shown)] == [
        used[node] for node in sorted(used, key=lambda node: (node[-1], node))
    ]
    assert re.findall(r"claims  (\d+) reserved", shown) == ([str(pods)] if pods else [])
    assert re.findall(r"pods    (\d+) Running", shown) == ([str(pods)] if pods else [])


def test_what_is_not_selected_has_a_plus_sign(tmp_path: Path) -> None:
    shown = run("--from", saved(tmp_path, shared()), "--computedomain", "team/train").stdout
    assert "│ 00 ●◆ ▇▇▇▇▇ A\N{MULTIPLICATION SIGN}2 ▇▇▇▇▇  2/16 │  │ 00 ●◆ ▇▇▇▇▇▇ + ▇▇▇▇▇▇  1/16 │" in shown


def test_the_pods_of_a_compute_domain_are_counted_in_the_partition_that_is_shown(tmp_path: Path) -> None:
    broken = Broken()
    BREAKINGS["IMEX410"](broken)
    file = saved(tmp_path, broken)
    for arguments, pods in (([], 2), (["--partition", "r0"], 1), (["--partition", "r1"], 1)):
        (found,) = json.loads(run("--from", file, "-o", "json", *arguments).stdout)["computeDomains"]
        assert found["pods"] == pods


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "r7"], "imex: there is no NVLinkPartition or rack r7; known racks: r0, r1\n"),
        (["--computedomain", "x"], "imex: there is no ComputeDomain x\n"),
        (["-n", "x"], "imex: there is no namespace x; check -n, or the namespace of the current context\n"),
        (["--watch"], "imex: --watch needs a terminal, and the package rich\n"),
    ],
)
def test_what_cannot_run_exits_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run("--from", written(tmp_path), *arguments)
    assert (done.exit_code, done.stderr) == (2, message)


def test_watch_draws_at_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    terminal, side = pty.openpty()
    command = [sys.executable, "-m", "imex_dra.cli", "status", "--watch", f"--from={written(tmp_path)}"]
    # A session whose terminal this is, so that Ctrl-C arrives as from a keyboard.
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", "COLUMNS": "120", "LINES": "40"},
    ) as child:
        os.close(side)
        try:
            seen = b""
            while b"team/train" not in seen:
                seen += os.read(terminal, 4096)
            os.write(terminal, b"\x03")
            with suppress(OSError):  # the other side is closed
                while rest := os.read(terminal, 4096):
                    seen += rest
            assert child.wait(60) == 0, seen.decode(errors="replace")
            assert b"Traceback" not in seen
        finally:
            child.kill()
            os.close(terminal)


def test_without_a_cluster_it_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    done = run()
    assert done.exit_code == 2
    assert done.stderr.startswith("imex: KUBECONFIG is /no/such/file, and there is no such file")
