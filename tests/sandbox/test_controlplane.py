import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured, Rejected, Unavailable
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.kubectl import Kubectl
from tests.sandbox.waiting import eventually

pytestmark = pytest.mark.kube

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
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("whole"), users={"alice": ["people"]}) as control_plane:
        yield control_plane


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path, scheduler=False, controller_manager=False) as control_plane:
        yield control_plane


def fetch(control_plane: ControlPlane, path: str) -> tuple[int, Any]:
    """Status and first JSON line of the answer, verified as strictly as the newest Python does."""
    trust = ssl.create_default_context(cafile=control_plane.authority.certificate)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    token = control_plane.identities.token("admin")
    request = urllib.request.Request(f"{control_plane.url}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=trust) as response:
            return response.status, json.loads(response.readline())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.readline())


def may(user: Kubectl, *what: str) -> str:
    try:
        return user("auth", "can-i", *what)
    except Rejected as refused:
        return str(refused)


def processes_in(directory: Path) -> list[str]:
    def lives_there(process: Path) -> bool:
        try:
            return (process / "cwd").readlink() == directory
        except OSError:
            return False

    return [process.name for process in Path("/proc").glob("[0-9]*") if lives_there(process)]


def test_kubectl_and_server_have_the_pinned_version(whole: ControlPlane) -> None:
    versions = json.loads(whole.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"] == "v1.36.4"


def test_a_deployment_gets_pods(whole: ControlPlane) -> None:
    whole.kubectl.apply(DEPLOYMENT)
    assert eventually(lambda: len(whole.kubectl.get("pods", "-l", "app=web")["items"]) == 2)


def test_the_scheduler_says_why_a_pod_waits(whole: ControlPlane) -> None:
    whole.kubectl.apply(DEPLOYMENT)
    waiting = "no nodes available to schedule pods"
    assert eventually(
        lambda: waiting in whole.kubectl("get", "events", "--field-selector=reason=FailedScheduling")
    )


def test_a_claim_template_becomes_a_claim(whole: ControlPlane) -> None:
    spec = {"devices": {"requests": [{"name": "channel", "exactly": {"deviceClassName": "any"}}]}}
    pod = {
        "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "channel"}],
    }
    whole.kubectl.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "channel"},
            "spec": {"spec": spec},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimant"}, "spec": pod},
    )
    assert eventually(lambda: len(whole.kubectl.get("resourceclaims")["items"]) == 1)


def test_a_user_without_rights_is_refused(whole: ControlPlane) -> None:
    alice = Kubectl(whole.kubeconfig("alice"))
    with pytest.raises(Rejected, match=r'Forbidden.*User "alice" cannot list resource "secrets"'):
        alice("get", "secrets")


def test_groups_of_a_user_count(whole: ControlPlane) -> None:
    whole.kubectl("create", "clusterrolebinding", "people", "--clusterrole=view", "--group=people")
    alice = Kubectl(whole.kubeconfig("alice"))
    assert eventually(lambda: "yes" in may(alice, "list", "configmaps"))


def test_a_user_nobody_named_has_no_token(whole: ControlPlane) -> None:
    with pytest.raises(Misconfigured, match="no token for user bob"):
        whole.kubeconfig("bob")


def test_a_node_joins_with_a_certificate(whole: ControlPlane) -> None:
    node = Kubectl(whole.identities.with_certificate("system:node:n0", ["system:nodes"]))
    who = json.loads(node("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert who["username"] == "system:node:n0"
    assert "system:nodes" in who["groups"]


def test_a_service_account_gets_a_token(whole: ControlPlane) -> None:
    account = Kubectl(whole.service_account("default", "default"))
    who = json.loads(account("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert who["username"] == "system:serviceaccount:default:default"


def test_a_token_may_be_bound_to_a_node(whole: ControlPlane) -> None:
    whole.kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    account = Kubectl(whole.service_account("default", "default", node="n1"))
    extra = json.loads(account("auth", "whoami", "-o", "json"))["status"]["userInfo"]["extra"]
    whole.kubectl("delete", "node", "n1")
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]


def test_every_write_is_in_the_audit_log_with_its_user_agent(whole: ControlPlane) -> None:
    whole.kubectl("create", "configmap", "audited")
    lines = [json.loads(line) for line in whole.audit_log.read_text().splitlines()]
    (write,) = [
        line for line in lines if line["verb"] == "create" and line.get("objectRef", {}).get("name") == "audited"
    ]
    assert write["level"] == "Metadata"
    assert write["userAgent"].startswith("kubectl/v1.36.4")
    assert write["user"]["username"] == "admin"


def test_a_killed_api_server_comes_back_with_its_port_and_data(bare: ControlPlane) -> None:
    bare.kubectl("create", "configmap", "kept")
    bare.kill_apiserver()
    with pytest.raises(Rejected, match="refused"):
        bare.kubectl("get", "configmap", "kept")
    bare.start_apiserver()
    assert bare.kubectl("get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"


def test_an_api_server_that_runs_is_not_started_twice(bare: ControlPlane) -> None:
    bare.start_apiserver()
    assert sorted(process.name for process in bare.processes if process.running) == ["etcd", "kube-apiserver"]
    assert len(processes_in(bare.directory)) == 2


def test_versions_from_before_a_compaction_are_gone_after_a_restart(bare: ControlPlane) -> None:
    old = old_version(bare)
    bare.compact()
    bare.kill_apiserver()
    bare.start_apiserver()
    assert_gone(bare, old)


def test_without_a_watch_cache_compaction_alone_is_enough(tmp_path: Path) -> None:
    flags = ["--watch-cache=false"]
    with ControlPlane(tmp_path, scheduler=False, controller_manager=False, apiserver_flags=flags) as uncached:
        old = old_version(uncached)
        uncached.compact()
        assert_gone(uncached, old)


def old_version(control_plane: ControlPlane) -> str:
    """Two writes ago: the last write itself survives a compaction."""
    _, listed = fetch(control_plane, CONFIG_MAPS)
    control_plane.kubectl("create", "configmap", "new")
    control_plane.kubectl("create", "configmap", "newer")
    return str(listed["metadata"]["resourceVersion"])


def assert_gone(control_plane: ControlPlane, version: str) -> None:
    status, event = fetch(control_plane, f"{CONFIG_MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=5")
    assert (status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)
    status, answer = fetch(control_plane, f"{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")
    assert (status, answer["reason"]) == (410, "Expired")


def test_two_run_side_by_side_and_leave_nothing_behind(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    one, two = (ControlPlane(directory, scheduler=False, controller_manager=False) for directory in directories)
    with one, two:
        assert [len(processes_in(directory)) for directory in directories] == [2, 2]
        one.kubectl("create", "configmap", "here")
        with pytest.raises(Rejected, match="not found"):
            two.kubectl("get", "configmap", "here")
    assert [processes_in(directory) for directory in directories] == [[], []]


def test_a_wrong_flag_fails_with_the_servers_own_words(tmp_path: Path) -> None:
    control_plane = ControlPlane(tmp_path, apiserver_flags=["--no-such-flag"])
    with pytest.raises(
        Unavailable, match=r"kube-apiserver ended \(exit code 1\)[^$]*unknown flag: --no-such-flag"
    ):
        control_plane.start()
    assert processes_in(tmp_path) == []
