"""Fault scripts are parsed and checked as a whole. Errors name the path of the invalid field."""

from pathlib import Path

import pytest
import yaml

from imex_dra.base.errors import Misconfigured
from imex_sandbox.faults import script
from imex_sandbox.faults.kinds import (
    KINDS,
    BreakFabric,
    Fault,
    HangProcess,
    KillNode,
    LastingFault,
    parse_duration,
    summary,
)
from tests.paths import EXAMPLES

NODES = {"r0-n00": "x.1", "r0-n01": "x.1", "r0-n02": "x.1", "r1-n00": ""}
HEAD = "apiVersion: sandbox.imex-dra.io/v1\nkind: Faults\n"
SCRIPTS = sorted((EXAMPLES / "faults").glob("*.yaml"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "script.yaml"


def load(path: Path, steps: str) -> tuple[Fault, ...]:
    path.write_text(f"{HEAD}steps: {steps}")
    return script.load(path, NODES)


def test_the_steps_of_a_script_are_faults(path: Path) -> None:
    steps = load(
        path, "[{fault: kill-node, nodes: [r0-n01], for: 30s}, {fault: break-fabric, nodes: [r0-*], after: 1.5s}]"
    )
    assert steps == (KillNode(nodes=("r0-n01",), for_="30s"), BreakFabric(nodes=("r0-*",), after="1.5s"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("[]", "the script has no steps - at `$.steps`"),
        ("[{fault: melt-node, nodes: [r0-n00]}]", "Invalid value 'melt-node' - at `$.steps[0].fault`"),
        ("[{nodes: [r0-n00]}]", "missing required field `fault` - at `$.steps[0]`"),
        ("[{fault: kill-node}]", "missing required field `nodes` - at `$.steps[0]`"),
        ("[{fault: kill-node, nodes: []}]", "length >= 1 - at `$.steps[0].nodes`"),
        ("[{fault: kill-node, nodes: [r0-n00], color: red}]", "unknown field `color`"),
        ("[{fault: kill-node, nodes: [r0-n00], for: 3 days}]", "- at `$.steps[0].for`"),
        ("[{fault: reboot-node, nodes: [r0-n00], for: 3s}]", "unknown field `for`"),
        ("[{fault: fail-api, share: 1.5}]", "<= 1.0 - at `$.steps[0].share`"),
        ("[{fault: drop-traffic, between: [r0-n00]}]", "length 2, got 1 - at `$.steps[0].between`"),
        ("[{fault: kill-process, program: emacs}]", "Invalid enum value 'emacs' - at `$.steps[0].program`"),
        (
            "[{fault: reboot-node, nodes: [r0-n00]}, {fault: kill-node, nodes: [r0-n01, r7-n99]}]",
            "no node matches 'r7-n99': the cluster has r0-n00 to r1-n00 - at `$.steps[1].nodes[1]`",
        ),
        (
            "[{fault: drop-traffic, between: [r0-n00, r9-*]}]",
            "no node matches 'r9-*': the cluster has r0-n00 to r1-n00 - at `$.steps[0].between[1]`",
        ),
        (
            "[{fault: kill-process, program: imex-node}]",
            "imex-node runs on every node: name the nodes - at `$.steps[0].nodes`",
        ),
        (
            "[{fault: hang-process, program: apiserver, nodes: [r0-n00]}]",
            "apiserver does not run on a node: omit the nodes",
        ),
        (
            "[{fault: hang-process, program: kubelet, nodes: [r0-n00]}]",
            "all kubelets of the cluster share a process: use kill-process or cut-api",
        ),
        (
            "[{fault: change-clique, clique: 3, nodes: [r1-*]}]",
            "node r1-n00 is not part of an NVLink fabric",
        ),
        (
            "[{fault: kill-process, program: nvidia-imex, nodes: [r0-n00], for: 5s}]",
            "restarts nvidia-imex at once: use hang-process, or kill imex-supervisor - at `$.steps[0].for`",
        ),
    ],
)
def test_the_error_for_an_invalid_step_names_the_file_and_the_path(path: Path, steps: str, message: str) -> None:
    with pytest.raises(Misconfigured) as error:
        load(path, steps)
    assert str(error.value).startswith(f"{path} is not a valid fault script: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"a: [", b"\xff\xfe\xff", b"kind: Cluster\napiVersion: sandbox.imex-dra.io/v1"]
)
def test_a_file_that_is_not_a_script_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match="is not a valid fault script"):
        script.load(path, NODES)


def test_the_error_for_a_missing_file_names_it(path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"script.yaml cannot be read: No such file"):
        script.load(path, NODES)


def test_patterns_select_each_node_once_in_the_order_of_the_cluster() -> None:
    assert script.matching(["r1-*", "r0-n0[01]", "r0-n00"], NODES) == ("r0-n00", "r0-n01", "r1-n00")


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("0s", 0)]
)
def test_durations_are_parsed_to_seconds(text: str, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected)


def test_only_lasting_faults_have_a_time() -> None:
    assert HangProcess(program="kubelet", nodes=("a",), for_="2s").seconds == 2
    assert HangProcess(program="kubelet", nodes=("a",)).seconds is None
    assert {name for name, kind in KINDS.items() if not issubclass(kind, LastingFault)} == {
        "reboot-node",
        "restart-kubelet",
        "reload-driver",
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_summary_and_an_example(kind: type[Fault]) -> None:
    assert summary(kind).endswith(".")
    assert kind.example.split()[0] == kind.__struct_config__.tag


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_examples_are_valid_for_two_racks(path: Path) -> None:
    cluster = {f"r{rack}-n{node:02}": f"{rack}.1" for rack in range(2) for node in range(3)}
    assert script.load(path, cluster)


def test_the_examples_use_every_kind() -> None:
    assert {step["fault"] for path in SCRIPTS for step in yaml.safe_load(path.read_text())["steps"]} == set(KINDS)
