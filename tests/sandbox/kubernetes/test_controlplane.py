import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured, Rejected, Unavailable
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.kubernetes.versions import kubernetes
from tests.waiting import until

pytestmark = [pytest.mark.kube, pytest.mark.slow]

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "imex-dra.io/test/pause:1"}]},
        },
    },
}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), users={"alice": ["people"]}) as running:
        yield running


@pytest.fixture
def apiserver(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane without scheduler and controller manager, for one test."""
    with ControlPlane(tmp_path, scheduler=False, controller_manager=False) as control_plane:
        yield control_plane


def fetch(control_plane: ControlPlane, path: str) -> tuple[int, Any]:
    """The status, and the first JSON line of the response. Verifies certificates strictly, as Python 3.13 does."""
    context = ssl.create_default_context(cafile=control_plane.authority.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    token = control_plane.identities.token("admin")
    request = urllib.request.Request(f"{control_plane.url}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            return response.status, json.loads(response.readline())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.readline())


def can_i(user: Kubectl, *words: str) -> str:
    try:
        return user("auth", "can-i", *words)
    except Rejected as error:
        return str(error)


def processes_in(directory: Path) -> list[str]:
    def is_in(process: Path) -> bool:
        try:
            return (process / "cwd").readlink() == directory
        except OSError:
            return False

    return [process.name for process in Path("/proc").glob("[0-9]*") if is_in(process)]


def test_kubectl_and_the_api_server_have_the_pinned_version(control_plane: ControlPlane) -> None:
    versions = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"] == kubernetes()


def test_the_controller_manager_creates_the_pods_of_a_deployment(control_plane: ControlPlane) -> None:
    control_plane.kubectl.apply(DEPLOYMENT)
    until(lambda: len(control_plane.kubectl.get("pods", "-l", "app=web")["items"]) == 2)


def test_the_scheduler_reports_why_a_pod_is_pending(control_plane: ControlPlane) -> None:
    control_plane.kubectl.apply(DEPLOYMENT)
    message = "no nodes available to schedule pods"
    until(lambda: message in control_plane.kubectl("get", "events", "--field-selector=reason=FailedScheduling"))


def test_a_claim_is_created_from_a_claim_template(control_plane: ControlPlane) -> None:
    spec = {"devices": {"requests": [{"name": "channel", "exactly": {"deviceClassName": "any"}}]}}
    pod = {
        "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "channel"}],
    }
    control_plane.kubectl.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "channel"},
            "spec": {"spec": spec},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimant"}, "spec": pod},
    )
    until(lambda: len(control_plane.kubectl.get("resourceclaims")["items"]) == 1)


def test_a_user_without_permissions_is_forbidden(control_plane: ControlPlane) -> None:
    alice = Kubectl(control_plane.kubeconfig("alice"))
    with pytest.raises(Rejected, match=r'Forbidden.*User "alice" cannot list resource "secrets"'):
        alice("get", "secrets")


def test_a_user_has_the_permissions_of_its_groups(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "clusterrolebinding", "people", "--clusterrole=view", "--group=people")
    alice = Kubectl(control_plane.kubeconfig("alice"))
    until(lambda: "yes" in can_i(alice, "list", "configmaps"))


def test_an_unknown_user_has_no_token(control_plane: ControlPlane) -> None:
    with pytest.raises(Misconfigured, match="user bob has no token"):
        control_plane.kubeconfig("bob")


def test_a_client_certificate_authenticates_a_node(control_plane: ControlPlane) -> None:
    node = Kubectl(control_plane.identities.with_certificate("system:node:n0", ["system:nodes"]))
    who = json.loads(node("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert who["username"] == "system:node:n0"
    assert "system:nodes" in who["groups"]


def test_a_token_authenticates_a_service_account(control_plane: ControlPlane) -> None:
    account = Kubectl(control_plane.service_account("default", "default"))
    who = json.loads(account("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert who["username"] == "system:serviceaccount:default:default"


def test_a_service_account_token_can_be_bound_to_a_node(control_plane: ControlPlane) -> None:
    control_plane.kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    account = Kubectl(control_plane.service_account("default", "default", node="n1"))
    extra = json.loads(account("auth", "whoami", "-o", "json"))["status"]["userInfo"]["extra"]
    control_plane.kubectl("delete", "node", "n1")
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]


def test_every_write_is_in_the_audit_log_with_its_user_agent(control_plane: ControlPlane) -> None:
    def audited() -> list[dict[str, Any]]:
        text = control_plane.audit_log.read_text()
        # The last line may be incomplete.
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [
            line
            for line in lines
            if line["verb"] == "create" and line.get("objectRef", {}).get("name") == "audited"
        ]

    control_plane.kubectl("create", "configmap", "audited")
    # The API server logs a request after it has responded.
    (write,) = until(audited)
    assert write["level"] == "Metadata"
    assert write["userAgent"].startswith(f"kubectl/{kubernetes()}")
    assert write["user"]["username"] == "admin"


def test_a_killed_api_server_keeps_its_port_and_data(apiserver: ControlPlane) -> None:
    apiserver.kubectl("create", "configmap", "kept")
    apiserver.kill_apiserver()
    with pytest.raises(Rejected, match="refused"):
        apiserver.kubectl("get", "configmap", "kept")
    apiserver.start_apiserver()
    assert apiserver.kubectl("get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"


def test_a_running_api_server_is_not_started_again(apiserver: ControlPlane) -> None:
    apiserver.start_apiserver()
    assert sorted(process.name for process in apiserver.processes if process.running) == ["etcd", "kube-apiserver"]
    assert len(processes_in(apiserver.directory)) == 2


def test_old_resource_versions_are_gone_after_compaction_and_a_restart(apiserver: ControlPlane) -> None:
    old = old_resource_version(apiserver)
    apiserver.compact()
    apiserver.kill_apiserver()
    apiserver.start_apiserver()
    assert_gone(apiserver, old)


def test_old_resource_versions_are_gone_after_compaction_without_a_watch_cache(tmp_path: Path) -> None:
    flags = ["--watch-cache=false"]
    with ControlPlane(tmp_path, scheduler=False, controller_manager=False, apiserver_flags=flags) as uncached:
        old = old_resource_version(uncached)
        uncached.compact()
        assert_gone(uncached, old)


def old_resource_version(control_plane: ControlPlane) -> str:
    """The resource version before the last two writes. Compaction does not discard the last one."""
    _, listed = fetch(control_plane, CONFIG_MAPS)
    control_plane.kubectl("create", "configmap", "new")
    control_plane.kubectl("create", "configmap", "newer")
    return str(listed["metadata"]["resourceVersion"])


def assert_gone(control_plane: ControlPlane, version: str) -> None:
    status, event = fetch(control_plane, f"{CONFIG_MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=5")
    assert (status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)
    status, answer = fetch(control_plane, f"{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")
    assert (status, answer["reason"]) == (410, "Expired")


def test_two_control_planes_run_independently_and_leave_no_processes(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    one, two = (ControlPlane(directory, scheduler=False, controller_manager=False) for directory in directories)
    with one, two:
        assert [len(processes_in(directory)) for directory in directories] == [2, 2]
        one.kubectl("create", "configmap", "here")
        with pytest.raises(Rejected, match="not found"):
            two.kubectl("get", "configmap", "here")
    assert [processes_in(directory) for directory in directories] == [[], []]


def test_an_invalid_flag_is_reported_with_the_output_of_the_api_server(tmp_path: Path) -> None:
    control_plane = ControlPlane(tmp_path, apiserver_flags=["--no-such-flag"])
    with pytest.raises(
        Unavailable, match=r"kube-apiserver ended \(exit code 1\)[^$]*unknown flag: --no-such-flag"
    ):
        control_plane.start()
    assert processes_in(tmp_path) == []
