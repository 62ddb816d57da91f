"""Verification: every rule belongs to one check, and scopes select what concerns a reader."""

from collections import Counter
from dataclasses import replace

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.rules import RULES
from imex_dra.diagnose.scope import EVERYTHING
from imex_dra.diagnose.snapshot import Missing
from imex_dra.diagnose.verification import CHECKS, Check, Verdict, preflight, scope_of, verify
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import NOW, Broken, meta


def verdicts(broken: Broken, namespace: str = "", subject: str = "") -> dict[str, Verdict]:
    cluster = broken.cluster()
    kind, _, name = subject.partition("/")
    checks = verify(cluster, scope_of(cluster, namespace, kind, name)).checks
    return {check.title: check.verdict for check in checks if check.verdict is not Verdict.PASSED}


def test_every_rule_belongs_to_one_check() -> None:
    assert Counter(id for check in CHECKS for id in check.rules) == Counter(rule.id for rule in RULES)


def test_a_healthy_cluster_passes_with_counts() -> None:
    cluster = Broken().cluster()
    found = verify(cluster, scope_of(cluster, "team"))
    assert {check.verdict for check in found.checks} == {Verdict.PASSED}
    assert [check.count for check in found.checks if check.count] == ["2 of 2", "1 of 1 with pods", "2 of 2 nodes"]
    assert found.findings == ()


def test_what_is_not_there_yet_does_not_pass_although_another_check_says_why() -> None:
    """A pod that cannot be scheduled keeps its ComputeDomain from being Ready."""
    broken = Broken()
    BREAKINGS["IMEX401"](broken)
    broken.get("computedomains", "train")["status"]["status"] = "NotReady"
    assert verdicts(broken, "team") == {
        "claims are allocated,reserved": Verdict.FAILED,
        "ComputeDomains are Ready": Verdict.WAITING,
    }


def test_a_container_that_does_not_start_has_a_dot_and_is_no_finding() -> None:
    broken = Broken()
    waits = {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}
    status = broken.get("pods", "worker-1")["status"]
    status |= {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": waits}}]}
    assert broken.findings() == []
    assert verdicts(broken) == {"the channel is present, and the same on every node": Verdict.WAITING}
    cluster = broken.cluster()
    (count,) = [one.count for one in verify(cluster, scope_of(cluster, "team")).checks if one.verdict == "waiting"]
    assert count == "a container waits in worker-1 (ImagePullBackOff)"
    assert verdicts(broken, "team", "pod/worker-0") == {}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.title)
def test_the_check_of_a_broken_rule_does_not_pass(check: Check) -> None:
    for id in check.rules:
        broken = Broken()
        BREAKINGS[id](broken)
        expected = {"IMEX316": Verdict.PASSED}.get(id)
        assert expected or check.title in verdicts(broken), id


@pytest.mark.parametrize(
    ("namespace", "subject", "found"),
    [
        ("", "", True),
        ("team", "", True),
        ("other", "", False),
        ("team", "mpijob/train", True),
        ("team", "pod/worker-0", True),
        ("team", "computedomain/train", True),
        ("", "node/r0-n01", True),
        ("", "node/r1-n01", False),
    ],
)
def test_only_what_concerns_the_reader_is_found(namespace: str, subject: str, found: bool) -> None:
    broken = Broken()
    BREAKINGS["IMEX303"](broken)
    assert bool(verdicts(broken, namespace, subject)) is found


def test_a_check_whose_objects_cannot_be_read_is_unknown() -> None:
    broken = Broken()
    broken.hide("nvlinknodes")
    assert set(verdicts(broken).values()) == {Verdict.UNKNOWN}


def test_the_objects_of_a_namespace_are_enough_for_its_reader() -> None:
    broken = Broken()
    BREAKINGS["IMEX101"](broken)
    for plural in ("pods", "resourceclaims", "resourceclaimtemplates", "computedomains"):
        broken.missing.append(Missing(plural, "only of namespace team", namespace="team"))
    cluster = broken.cluster()
    results = verify(cluster, scope_of(cluster, "team"), "team").checks
    verdicts = {check.title: check.verdict for check in results}
    assert verdicts["resourceClaimTemplateName of every pod is a template of its namespace"] is Verdict.FAILED
    assert verdicts["ComputeDomains are Ready"] is Verdict.PASSED
    elsewhere = verify(cluster, scope_of(cluster, "other"), "other").checks
    assert {check.title: check.verdict for check in elsewhere}["ComputeDomains are Ready"] is Verdict.UNKNOWN


@pytest.mark.parametrize("subject", ["pod/x", "computedomain/x", "node/x", "job/train"])
def test_an_object_that_does_not_exist_is_rejected(subject: str) -> None:
    with pytest.raises(Rejected, match="there is no"):
        verdicts(Broken(), "team", subject)


def leader_worker_set(*, labels: bool = True, groups: int = 1) -> Broken:
    """StatefulSet serve has the leaders; the workers of a leader are a StatefulSet that belongs to its pod."""
    broken = Broken()
    broken.remove("pods")
    broken.remove("resourceclaims")
    for group in range(groups):
        for number, name in enumerate((f"serve-{group}", f"serve-{group}-1")):
            broken.job(name, f"r{group}-n0{number}", owner=f"StatefulSet/{'serve' if not number else name[:-2]}")
            if labels:
                own = {"name": "serve", "group-index": str(group)}
                broken.get("pods", name)["metadata"]["labels"] |= {
                    f"leaderworkerset.sigs.k8s.io/{key}": value for key, value in own.items()
                }
        owned_by(broken, f"serve-{group}", "Pod", f"serve-{group}")
    owned_by(broken, "serve", "LeaderWorkerSet", "serve")
    return broken


def owned_by(broken: Broken, stateful_set: str, kind: str, name: str) -> None:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "uid-owner", "controller": True}
    broken.add("statefulsets", {"metadata": meta(stateful_set, "team", ownerReferences=[owner])})


@pytest.mark.parametrize("labels", [True, False])
def test_a_leaderworkerset_is_one_workload_by_its_owners_or_its_label(labels: bool) -> None:
    broken = leader_worker_set(labels=labels)
    if labels:
        broken.hide("statefulsets", "you may not list statefulsets")
    assert broken.findings() == []
    assert len(scope_of(broken.cluster(), "team", "leaderworkerset", "serve").pods) == 2


def test_the_groups_of_a_leaderworkerset_need_a_partition_each() -> None:
    broken = leader_worker_set(groups=2)
    for name in ("serve-1", "serve-1-1"):
        pod = broken.get("pods", name)
        pod["spec"]["nodeName"] = ""
        pod["status"]["phase"] = "Pending"
        pod["spec"]["affinity"] = {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"x": "y"}}, "topologyKey": "nvidia.com/gpu.clique"}
                ]
            }
        }
        broken.get("resourceclaims", f"{name}-imex")["status"] = {}
    assert [finding.id for finding in broken.findings()] == []


@pytest.mark.parametrize(
    ("cluster_name", "subject", "found"),
    [
        ("train-raycluster-8xk2p", "rayjob/train", True),
        ("train-x7k2p", "RayJobs/train", True),
        ("train-x7k2p", "rayservice/train", True),
        ("train-x7k2p", "raycluster/train-x7k2p", True),
        ("train-large", "rayjob/train", False),
        ("train-x7k2p", "rayjob/tra", False),
        ("my-train-x7k2p", "rayjob/train", False),
    ],
)
def test_a_rayjob_has_the_pods_of_its_raycluster(cluster_name: str, subject: str, found: bool) -> None:
    broken = Broken()
    for name in ("worker-0", "worker-1"):
        owner = broken.get("pods", name)["metadata"]["ownerReferences"][0]
        owner |= {"kind": "RayCluster", "name": cluster_name}
    kind, _, name = subject.partition("/")
    if found:
        assert len(scope_of(broken.cluster(), "team", kind, name).pods) == 2
    else:
        with pytest.raises(Rejected, match="there is no pod of"):
            scope_of(broken.cluster(), "team", kind, name)


def test_a_rayjob_that_its_pods_name_is_their_workload() -> None:
    broken = Broken()
    for name in ("worker-0", "worker-1"):
        metadata = broken.get("pods", name)["metadata"]
        metadata["ownerReferences"][0] |= {"kind": "RayCluster", "name": f"cluster-{name}"}
        metadata["labels"] |= {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "train"}
    assert broken.findings() == []
    assert len(scope_of(broken.cluster(), "team", "rayjob", "train").pods) == 2


def test_known_kinds_are_listed_once() -> None:
    with pytest.raises(Rejected) as error:
        scope_of(Broken().cluster(), "team", "frob", "x")
    kinds = str(error.value).partition("known kinds: ")[2].split(", ")
    assert len(kinds) == len(set(kinds))
    assert "pod" in kinds


def not_installed() -> Broken:
    """A cluster with GPUs, without the driver."""
    broken = Broken()
    workloads = ("pods", "resourceclaims", "resourceclaimtemplates")
    for plural in (*workloads, "resourceslices", "deviceclasses", "leases"):
        broken.remove(plural)
    for plural in ("computedomains", "nvlinknodes", "nvlinkpartitions"):
        broken.hide(plural, f"the cluster has no kind of {plural}", not_served=True)
    return broken


def found(broken: Broken) -> list[str]:
    return [finding.id for finding in preflight(broken.cluster()).findings]


def test_preflight_of_a_cluster_without_the_driver_finds_nothing() -> None:
    assert found(not_installed()) == []
    verdicts = {check.title: check.verdict for check in preflight(not_installed().cluster()).checks}
    assert verdicts["the driver is installed, and runs"] is Verdict.UNKNOWN
    assert verdicts["Kubernetes has DRA, and no kubelet is too old"] is Verdict.PASSED


def test_dra_is_unknown_without_the_version_and_without_its_kinds() -> None:
    """As of files with nothing but nodes."""
    broken = not_installed()
    broken.version = ""
    kinds = ("resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates")
    title = "Kubernetes has DRA, and no kubelet is too old"

    def verdict() -> Verdict:
        return next(check.verdict for check in preflight(broken.cluster()).checks if check.title == title)

    for plural in kinds:
        assert verdict() is Verdict.PASSED  # the API server has answered with a list of resource.k8s.io/v1
        broken.hide(plural, f"the files contain no {plural}")
    assert verdict() is Verdict.UNKNOWN
    broken.version = "v1.36.4"
    assert verdict() is Verdict.UNKNOWN  # resource.k8s.io/v1 may be turned off
    broken.version = "v1.33.0"
    assert verdict() is Verdict.FAILED
    broken.version = ""
    old = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": meta("x")}
    broken.objects["deviceclasses"] = [old]
    assert verdict() is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("taken_at", "renewed", "verdict"),
    [
        (NOW, "2026-11-18T02:59:55.000000Z", Verdict.PASSED),
        ("", "2026-11-18T02:59:55.000000Z", Verdict.UNKNOWN),
        (NOW, "", Verdict.UNKNOWN),
        (NOW, "x", Verdict.UNKNOWN),
        (NOW, "2020-01-01T00:00:00.000000Z", Verdict.FAILED),
    ],
)
def test_whether_the_controller_runs_is_unknown_without_the_times(
    taken_at: str, renewed: str, verdict: Verdict
) -> None:
    broken = Broken()
    broken.get("leases", "imex-controller")["spec"]["renewTime"] = renewed
    cluster = Cluster(replace(broken.snapshot(), taken_at=taken_at))
    assert verify(cluster, EVERYTHING).checks[0].verdict is verdict


def test_preflight_of_a_healthy_cluster_finds_nothing() -> None:
    assert found(Broken()) == []


def test_preflight_finds_the_driver_of_nvidia_before_the_installation() -> None:
    broken = not_installed()
    containers = [{"name": "x", "command": ["compute-domain-kubelet-plugin"]}]
    spec = {"template": {"spec": {"containers": containers}}}
    broken.add("daemonsets", {"metadata": meta("kubelet-plugin", "nvidia-dra-driver-gpu"), "spec": spec})
    assert found(broken) == ["IMEX203"]


def test_preflight_finds_a_cluster_without_dynamic_resource_allocation() -> None:
    broken = not_installed()
    broken.hide("resourceslices", "the cluster has no kind ResourceSlice", not_served=True)
    assert found(broken) == ["IMEX210"]


def test_preflight_finds_kubelets_that_the_api_server_does_not_allow() -> None:
    broken = not_installed()
    broken.version = "v1.38.0"
    broken.get("nodes", "r0-n01")["status"]["nodeInfo"]["kubeletVersion"] = "v1.34.0"
    (finding,) = preflight(broken.cluster()).findings
    assert finding.message == "the kubelets of r0-n01 run Kubernetes 1.34, and the API server allows 1.35 or later"


def test_preflight_does_not_look_at_workloads() -> None:
    broken = Broken()
    BREAKINGS["IMEX105"](broken)
    assert found(broken) == []
