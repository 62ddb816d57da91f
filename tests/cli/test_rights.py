"""Commands with a reader who may read nothing, or only one namespace: a sentence says so."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imex_dra.base.errors import Rejected
from imex_dra.cli import imex
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl
from tests.waiting import until

pytestmark = pytest.mark.kube

READING = [
    "status",
    "verify",
    "explain pod worker-0",
    "preflight",
    "collect --file bundle.tar.gz",
    "migrate cluster",
]
NAMESPACE = "only-here"


def run(control_plane: ControlPlane, line: str, *more: str) -> Result:
    words = [*line.split(), *more, f"--kubeconfig={control_plane.kubeconfig('unprivileged')}"]
    return CliRunner().invoke(imex, words, prog_name="imex")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def viewer(control_plane: ControlPlane) -> Iterator[None]:
    """A role in one namespace. Not view, which a controller fills. Authorization knows of it a moment later."""
    kubectl = control_plane.kubectl
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker-0", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "image": "x"}], "serviceAccountName": "none"},
    }
    kubectl("create", "namespace", NAMESPACE)
    kubectl("-n", NAMESPACE, "create", "serviceaccount", "none")
    kubectl.apply(pod)
    resources = "pods,events.events.k8s.io,resourceclaims.resource.k8s.io,computedomains.resource.nvidia.com"
    kubectl("-n", NAMESPACE, "create", "role", "viewer", "--verb=get,list", f"--resource={resources}")
    kubectl("-n", NAMESPACE, "create", "rolebinding", "viewer", "--role=viewer", "--user=unprivileged")
    mine = Kubectl(control_plane.kubeconfig("unprivileged"))
    until(lambda: _can_list(mine))
    yield
    kubectl("-n", NAMESPACE, "delete", "rolebinding", "viewer")


def _can_list(kubectl: Kubectl) -> bool:
    try:
        return "yes" in kubectl("-n", NAMESPACE, "auth", "can-i", "list", "pods")
    except Rejected:  # it exits with 1
        return False


@pytest.mark.parametrize("line", READING)
def test_a_reader_who_may_read_nothing_is_told(control_plane: ControlPlane, line: str) -> None:
    done = run(control_plane, line)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("imex: nothing of this cluster can be read: you may not list pods")
    assert done.stderr.count("\n") == 1


def test_who_may_not_forget_a_node_is_told(control_plane: ControlPlane) -> None:
    done = run(control_plane, "forget-node r0-n01 --yes")
    assert done.exit_code == 2
    assert 'User "unprivileged" cannot get resource "nodes"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_who_may_not_create_the_check_pod_is_told(control_plane: ControlPlane) -> None:
    done = run(control_plane, "preflight --node r0-n01")
    assert done.exit_code == 2
    assert 'User "unprivileged" cannot create resource "pods"' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ["status", "verify", "explain pod worker-0"])
def test_a_reader_of_one_namespace_is_told_what_is_missing(
    control_plane: ControlPlane, viewer: None, line: str
) -> None:
    text = run(control_plane, line, "-n", NAMESPACE)
    assert text.exit_code == 0, text.output
    assert "not checked: you may" in text.stdout
    assert f"only in namespace {NAMESPACE}" in text.stdout.replace("\n", " ")
    content = json.loads(run(control_plane, line, "-n", NAMESPACE, "-o", "json").stdout)
    assert any("you may not list" in sentence for sentence in content["missing"])
