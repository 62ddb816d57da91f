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


@pytest.mark.parametrize("words", [("configmap", "x"), ("configmap", "--all")], ids=["one", "all"])
def test_a_dry_run_of_a_delete_deletes_nothing(kubectl: Shell, words: tuple[str, ...]) -> None:
    kubectl.apply(config_map(a="1"))
    try:
        answer = kubectl("delete", *words, "--dry-run=server")
    except Rejected as error:
        answer = str(error)
    assert "(server dry run)" in answer or "a dry run is not supported by the embedded API" in answer
    assert data_of(kubectl) == {"a": "1"}


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
    with pytest.raises(Rejected, match='the server doesn\'t have a resource type "cronjobs"'):
        kubectl("get", "cronjobs")
    with pytest.raises(Rejected, match="the server could not find the requested resource"):
        kubectl("create", "cronjob", "c", "--image=x", "--schedule=* * * * *")
    with pytest.raises(Rejected, match='no matches for kind "CronJob" in version "batch/v1"'):
        kubectl.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "x"}, "spec": {}})
    with pytest.raises(Rejected, match='no matches for kind "Ingress" in version "networking'):
        kubectl.apply({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "x"}})
    with pytest.raises(Rejected, match="a dry run is not supported by the embedded API"):
        kubectl("label", "namespace", kubectl.namespace, "a=b", "--dry-run=server")


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet"])
def test_what_has_no_controller_says_what_to_use_instead(
    embedded_control_plane: EmbeddedControlPlane, kind: str
) -> None:
    kubectl = Shell(embedded_control_plane)
    alternatives = "use a Job, a StatefulSet or a Pod, or --control-plane kubernetes"
    message = f"{kind}s are not supported by the embedded control plane: {alternatives}"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    body: dict[str, object] = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    for words in (["create"], ["apply"], ["apply", "--server-side"]):
        with pytest.raises(Rejected, match=message):
            kubectl.control_plane.kubectl(*words, "-f", "-", stdin=to_yaml(body))
    if kind == "Deployment":
        with pytest.raises(Rejected, match=message):
            kubectl("create", "deployment", "d", "--image=x")
    assert kubectl("get", kind, "-o", "name") == ""


def test_a_node_can_be_drained(kubectl: Shell) -> None:
    """Its pods are deleted, without the grace period that kubectl was told to leave out."""
    node = f"{kubectl.namespace}-n"
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    spec = {
        "nodeName": node,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "any"}],
    }
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})
    kubectl("drain", node, "--force", "--grace-period=0", "--timeout=60s", "--disable-eviction")
    assert kubectl("get", "pods", "-o", "name") == ""
    assert kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}") == "true"
    kubectl("delete", "node", node)
