"""kubectl as a user runs it, on a real API server first, then on the embedded one."""

import json
import subprocess
import uuid

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl, to_yaml
from tests.sandbox.embedded.conftest import SLOW_KUBERNETES
from tests.sandbox.embedded.test_objects import domain


class Shell:
    def __init__(self, control_plane: ControlPlane | EmbeddedControlPlane) -> None:
        self.control_plane = control_plane
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self._kubectl = control_plane.kubectl
        self._kubectl("create", "namespace", self.namespace)

    def __call__(self, *words: str) -> str:
        return self._kubectl(f"--namespace={self.namespace}", *words)

    def apply(self, *documents: dict[str, object]) -> None:
        self._kubectl(f"--namespace={self.namespace}", "apply", "-f", "-", stdin=to_yaml(*documents))


@pytest.fixture(params=[SLOW_KUBERNETES, "embedded"])
def kubectl(request: pytest.FixtureRequest) -> Shell:
    name = "control_plane" if request.param == "kubernetes" else "embedded_control_plane"
    return Shell(request.getfixturevalue(name))


def config_map(**data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}


def data_of(kubectl: Shell) -> dict[str, str]:
    found: dict[str, str] = json.loads(kubectl("get", "configmap", "x", "-o", "json"))["data"]
    return found


def test_apply_adds_changes_and_removes_fields(kubectl: Shell) -> None:
    kubectl.apply(config_map(a="1", b="2"))
    kubectl("patch", "configmap", "x", "-p", '{"data": {"by-others": "3"}}')
    kubectl.apply(config_map(a="4"))
    assert data_of(kubectl) == {"a": "4", "by-others": "3"}


def test_apply_of_a_custom_resource_checks_fields_on_the_server(kubectl: Shell) -> None:
    kubectl.apply(domain())
    kubectl.apply(domain(labels={"a": "b"}))
    assert kubectl("get", "cd", "job", "-o", "jsonpath={.metadata.labels.a} {.spec.numNodes}") == "b 0"
    wrong = {**domain("wrong"), "spec": {"numNodes": 0, "surprise": 1}}
    with pytest.raises(Rejected, match=r'unknown field "spec\.surprise"'):
        kubectl.apply(wrong)


def test_objects_that_kubectl_creates_from_flags(kubectl: Shell) -> None:
    kubectl("create", "configmap", "x", "--from-literal=a=1")
    kubectl("create", "secret", "generic", "s", "--from-literal=a=text")
    kubectl("create", "serviceaccount", "robot")
    assert data_of(kubectl) == {"a": "1"}
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.a}") == "dGV4dA=="


def test_a_token_of_a_service_account_has_the_permissions_of_its_role(kubectl: Shell) -> None:
    kubectl("create", "serviceaccount", "robot")
    account = f"{kubectl.namespace}:robot"
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl("create", "rolebinding", "reads", "--role=reader", f"--serviceaccount={account}")
    robot = Kubectl(kubectl.control_plane.service_account(kubectl.namespace, "robot"))
    assert "x" not in robot(f"--namespace={kubectl.namespace}", "get", "configmaps")
    user = f"system:serviceaccount:{account}"
    with pytest.raises(Rejected, match=f'User "{user}" cannot list resource "secrets" in API group ""'):
        robot(f"--namespace={kubectl.namespace}", "get", "secrets")
    with pytest.raises(Rejected, match='cannot get resource "nodes" in API group "" at the cluster scope'):
        robot("get", "node", "n")


def test_labels_annotations_and_selectors(kubectl: Shell) -> None:
    kubectl.apply(config_map(a="1"))
    kubectl("label", "configmap", "x", "team=a")
    kubectl("annotate", "configmap", "x", "note=hello")
    assert kubectl("get", "configmap", "-l", "team=a", "-o", "name").strip() == "configmap/x"
    kubectl("label", "configmap", "x", "team-")
    assert kubectl("get", "configmap", "-l", "team=a", "-o", "name") == ""


def test_get_prints_a_table_and_describe_the_fields(kubectl: Shell) -> None:
    kubectl.apply(domain())
    head, row = kubectl("get", "computedomains").splitlines()
    assert head.split()[:2] == ["NAME", "STATUS"]
    assert row.split()[0] == "job"
    described = kubectl("describe", "computedomain", "job")
    assert "Num Nodes:  0" in described


def test_delete_waits_until_the_object_is_gone(kubectl: Shell) -> None:
    kubectl.apply(config_map(a="1"), domain())
    assert "deleted" in kubectl("delete", "configmap/x", "computedomain/job")
    with pytest.raises(Rejected, match='configmaps "x" not found'):
        kubectl("get", "configmap", "x")


def test_wait_for_a_condition_follows_the_object(kubectl: Shell) -> None:
    kubectl.apply(domain())
    path = kubectl.control_plane.kubeconfig()
    words = ["wait", "cd/job", "--for=condition=Ready", "--timeout=60s", f"--namespace={kubectl.namespace}"]
    with subprocess.Popen(
        ["kubectl", f"--kubeconfig={path}", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as waiting:
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        patch = json.dumps({"status": {"conditions": [condition]}})
        kubectl("patch", "cd", "job", "--subresource=status", "--type=merge", "-p", patch)
        output, _ = waiting.communicate(timeout=90)
        assert (waiting.returncode, output.strip()) == (0, "computedomain.resource.nvidia.com/job condition met")


def test_what_the_embedded_api_does_not_have_is_said_clearly(embedded_control_plane: EmbeddedControlPlane) -> None:
    kubectl = Shell(embedded_control_plane)
    with pytest.raises(
        Rejected, match="a Job in protobuf is not supported by the embedded API: use kubectl apply"
    ):
        kubectl("create", "job", "j", "--image=x")
    with pytest.raises(Rejected, match='the server doesn\'t have a resource type "deployments"'):
        kubectl("get", "deployments")
    with pytest.raises(Rejected, match="a dry run is not supported by the embedded API"):
        kubectl("label", "namespace", kubectl.namespace, "a=b", "--dry-run=server")


@pytest.mark.parametrize(
    ("kind", "api_version", "spec", "message"),
    [
        ("Service", "v1", {"ports": [{"port": 80}]}, "a Service with a cluster IP"),
        ("ReplicaSet", "apps/v1", {}, "a ReplicaSet"),
        ("Job", "batch/v1", {"completionMode": "Indexed", "completions": 1}, "an Indexed Job"),
        (
            "StatefulSet",
            "apps/v1",
            {"volumeClaimTemplates": [{"spec": {}}]},
            "a StatefulSet with volumeClaimTemplates",
        ),
        (
            "Pod",
            "v1",
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "PersistentVolumeClaim",
        ),
    ],
    ids=["service", "replica set", "job", "stateful set", "volume"],
)
def test_what_would_have_no_effect_is_refused(
    embedded_control_plane: EmbeddedControlPlane,
    kind: str,
    api_version: str,
    spec: dict[str, object],
    message: str,
) -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    common: dict[str, object] = {} if kind in ("Service", "Pod") else {"template": template}
    if kind == "Pod":
        common = {"containers": [{"name": "c", "image": "i"}]}
    if kind in ("StatefulSet", "ReplicaSet"):
        common["selector"] = {"matchLabels": {"a": "b"}}
    body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {**common, **spec}}
    with pytest.raises(Rejected, match=f"{message}.* is not supported by the embedded API"):
        embedded_control_plane.kubectl.apply(body)
