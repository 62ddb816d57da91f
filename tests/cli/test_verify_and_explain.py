"""`imex verify` and `imex explain`: arguments, formats, exit codes."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from imex_dra.diagnose.bundle import pack
from tests.cli.test_status import saved, written
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


def test_verify_of_files_without_a_namespace_is_about_everything_and_says_so(tmp_path: Path) -> None:
    file = written(tmp_path, "IMEX303")
    done = run("verify", "--from", file)
    assert done.exit_code == 1
    first = "all namespaces (team): 2 pods (2 with a channel claim), 1 ComputeDomain, 4 nodes"
    assert done.stdout.splitlines()[0] == first
    done = run("verify", "-n", "other", "--from", file)
    assert done.stdout.splitlines()[0] == "namespace other: no pods, no ComputeDomains, no nodes"
    done = run("verify", "mpijob/train", "--from", file)
    first = "mpijob/train (team): 2 pods (2 with a channel claim), 1 ComputeDomain, 2 nodes"
    assert done.stdout.splitlines()[0] == first
    content = json.loads(run("verify", "-n", "team", "--from", file, "-o", "json").stdout)
    assert content["scope"] == {
        "subject": "namespace team",
        "namespaces": ["team"],
        "pods": 2,
        "claimingPods": 2,
        "computeDomains": 1,
        "nodes": 2,
    }


def test_a_name_in_files_needs_a_namespace_only_if_several_have_it(tmp_path: Path) -> None:
    broken = Broken()
    assert run("explain", "pod", "worker-1", "--from", saved(tmp_path, broken)).exit_code == 0
    for plural, name in (("pods", "worker-1"), ("computedomains", "train")):
        other = copy.deepcopy(broken.get(plural, name))
        other["metadata"]["namespace"] = "other"
        broken.objects[plural].append(other)
    file = saved(tmp_path, broken)
    for arguments, what in (
        (["explain", "pod", "worker-1"], "Pod worker-1"),
        (["verify", "pod/worker-1"], "Pod worker-1"),
        (["verify", "mpijob/train"], "mpijob train"),
        (["status", "--computedomain", "train"], "ComputeDomain train"),
    ):
        done = run(*arguments, "--from", file)
        assert done.exit_code == 2
        assert done.stderr == f"imex: {what} is in the namespaces other, team: choose one with -n\n"
        assert run(*arguments, "-n", "team", "--from", file).exit_code != 2


@pytest.mark.parametrize(
    ("arguments", "plural", "what"),
    [
        (["explain", "pod", "x"], "pods", "Pod x"),
        (["explain", "claim", "x"], "resourceclaims", "ResourceClaim x"),
        (["explain", "computedomain", "x"], "computedomains", "ComputeDomain x"),
        (["explain", "node", "x"], "nodes", "Node x"),
        (["verify", "po/x"], "pods", "Pod x"),
        (["verify", "no/x"], "nodes", "Node x"),
        (["verify", "mpijob/x"], "pods", "pods of mpijob x"),
        (["verify", "computedomain/x"], "computedomains", "ComputeDomain x"),
        (["status", "--computedomain", "x"], "computedomains", "ComputeDomain x"),
        (["status", "--partition", "x"], "nvlinkpartitions", "NVLinkPartition or rack x"),
    ],
)
def test_what_cannot_be_read_is_not_said_to_be_absent(
    tmp_path: Path, arguments: list[str], plural: str, what: str
) -> None:
    broken = Broken()
    broken.hide(plural, f"you may not list {plural}")
    file = tmp_path / "bundle.tar.gz"
    file.write_bytes(pack(broken.snapshot(), {}))
    done = run(*arguments, "--from", file)
    assert done.exit_code == 2
    assert done.stderr == f"imex: {what} cannot be looked up: you may not list {plural}\n"


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
        (["explain", "pdo", "x"], "known kinds: pod, claim, computedomain, node; did you mean pod?"),
        (["explain", "pod", "x"], "imex: there is no Pod x"),
        (["explain", "pod", "x", "-n", "team"], "imex: there is no Pod team/x"),
        (["verify", "worker-0"], "give a kind and a name, as in: pod/worker-0"),
        (["verify", "pod/x"], "imex: there is no Pod x"),
        (["verify", "po/worker-7"], "imex: there is no Pod worker-7; did you mean worker-1?"),
        (["verify", "mpijob/trian"], "imex: there is no pod of mpijob trian; did you mean train?"),
        (["verify", "frob/x"], "imex: unknown kind frob; known kinds: pod, claim, computedomain, node, cronjob,"),
        (["verify", "mpijbo/train"], "; did you mean mpijob?"),
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


@pytest.mark.parametrize("text", ["", "not a tar", "replicas: 4\n"])
@pytest.mark.parametrize("command", ["explain pod worker-1", "verify", "status", "preflight", "migrate cluster"])
def test_a_file_without_an_object_is_no_success(tmp_path: Path, command: str, text: str) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_text(text)
    done = run(*command.split(), "--from", written(tmp_path), "--from", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"imex: {file} has no Kubernetes object, and is no bundle of imex collect\n"


def test_objects_that_the_commands_do_not_read_are_no_success(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    done = run("verify", "--from", file)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"imex: {file}: no object is of a kind that is read: pods, ")


def test_a_bundle_is_read_alone(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_bytes(pack(Broken().snapshot(), {}))
    done = run("verify", "--from", file, "--from", written(tmp_path))
    assert done.exit_code == 2
    assert done.stderr == f"imex: {file} is an archive, which is read alone: leave out the other --from\n"


def test_an_object_with_values_of_other_types_is_named_and_nothing_is_concluded_from_its_absence(
    tmp_path: Path,
) -> None:
    broken = Broken()
    broken.get("nodes", "r0-n01")["status"] = 5
    broken.get("pods", "worker-0")["metadata"] = True
    done = run("verify", "--from", saved(tmp_path, broken))
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "1 of 4 nodes cannot be read: Node r0-n01: Expected" in text
    assert "1 of 2 pods cannot be read: Pod without metadata: Expected" in text
    assert "? the container runtimes support CDI\n" in done.stdout


UNREADABLE: dict[str, tuple[str, str, dict[str, object]]] = {
    "computedomains": ("train", "ComputeDomain team/train", {"status": "Ready"}),
    "nodes": ("r0-n00", "Node r0-n00", {"status": {"conditions": [{"status": 1}]}}),
    "nvlinknodes": ("r0-n00", "NVLinkNode r0-n00", {"status": {"imexState": "HIBERNATING"}}),
    "nvlinkpartitions": ("aaaa.1", "NVLinkPartition aaaa.1", {"status": {"channels": [{"channel": "7"}]}}),
    "pods": ("worker-0", "Pod team/worker-0", {"status": {"phase": 5}}),
    "resourceclaims": ("worker-0-imex", "ResourceClaim team/worker-0-imex", {"status": {"allocation": 5}}),
    "resourceclaimtemplates": ("imex-channel", "ResourceClaimTemplate team/imex-channel", {"spec": {"spec": 1}}),
    "resourceslices": ("r0-n00", "ResourceSlice r0-n00", {"spec": {"driver": 1}}),
}
"""As of a newer driver, or a file: plural, name, how it is named, and what cannot be read."""


@pytest.mark.parametrize("plural", UNREADABLE)
def test_an_object_that_cannot_be_decoded_is_named_and_no_error_follows_from_its_absence(
    tmp_path: Path, plural: str
) -> None:
    name, named, change = UNREADABLE[plural]
    broken = Broken()
    broken.get(plural, name).update(change)
    done = run("verify", "--from", saved(tmp_path, broken))
    total = len(broken.objects[plural])
    assert f"1 of {total} {plural} cannot be read: {named}" in " ".join(done.stdout.split())
    assert "error IMEX" not in done.stdout
    assert run("verify", "--strict", "--from", saved(tmp_path, broken)).exit_code == 1


def test_every_object_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    broken = Broken()
    for name in ("r0-n00", "r0-n01", "r1-n00"):
        broken.get("nvlinknodes", name)["status"]["imexState"] = "HIBERNATING"
    text = " ".join(run("status", "--from", saved(tmp_path, broken)).stdout.split())
    assert "3 of 4 nvlinknodes cannot be read: NVLinkNode r0-n00 cannot be decoded: Invalid enum value" in text
    assert "likewise r0-n01, r1-n00" in text


def test_preflight_prints_its_checks_and_exits_with_1_on_findings(tmp_path: Path) -> None:
    done = run("preflight", "--from", written(tmp_path))
    assert done.exit_code == 0
    assert "✓ Kubernetes has DRA, and no kubelet is too old\n" in done.stdout
    done = run("preflight", "--from", written(tmp_path, "IMEX212"))
    assert done.exit_code == 1
    assert "✗ the container runtimes support CDI\n" in done.stdout
    content = json.loads(run("preflight", "-o", "json", "--from", written(tmp_path, "IMEX212")).stdout)
    assert [finding["id"] for finding in content["findings"]] == ["IMEX212"]
