"""Where a pod fits: the first thing that a node lacks, and the counts per partition."""

from typing import Any

import pytest

from imex_dra.api.meta import Key
from imex_dra.diagnose.scheduling import fits, lack, quantity, requests
from tests.diagnose.healthy import Broken


def with_pod(**spec: Any) -> Broken:
    """A pod that waits, and a cluster with a job on r0."""
    broken = Broken()
    broken.job("new", "", owner="Job/new")
    broken.get("pods", "new")["spec"].update(spec)
    return broken


def lacking(broken: Broken, node: str) -> str:
    cluster = broken.cluster()
    return lack(cluster, cluster.pods_by_key[Key("team", "new")], node)


def test_a_pod_fits_where_gpus_and_devices_are_free() -> None:
    cluster = with_pod().cluster()
    found = fits(cluster, cluster.pods_by_key[Key("team", "new")])
    assert [str(fit) for fit in found] == [
        "r0: 0 of 2 nodes fit; 2 with too few free GPUs",
        "r1: 2 of 2 nodes fit",
    ]


def test_a_node_that_is_not_ready_or_cordoned_does_not_fit() -> None:
    broken = with_pod()
    broken.get("nodes", "r1-n00")["status"]["conditions"][0]["status"] = "Unknown"
    broken.get("nodes", "r1-n01")["spec"]["unschedulable"] = True
    assert (lacking(broken, "r1-n00"), lacking(broken, "r1-n01")) == ("not Ready", "cordoned")


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "gpu", "operator": "Exists"}], True),
        ([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], True),
        ([{"key": "gpu", "value": "no"}], False),
        ([{"key": "gpu", "value": "yes", "effect": "NoExecute"}], False),
    ],
)
def test_taints_need_a_toleration(tolerations: list[dict[str, str]], fits: bool) -> None:
    broken = with_pod(tolerations=tolerations)
    broken.get("nodes", "r1-n00")["spec"]["taints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert lacking(broken, "r1-n00") == ("" if fits else "tainted gpu=yes:NoSchedule")


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "kubernetes.io/hostname", "operator": "In", "values": ["r1-n00"]}, True),
        ({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["r1-n00"]}, False),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
        ({"key": "none", "operator": "Gt", "values": ["1"]}, False),
    ],
)
def test_node_affinity_is_evaluated(expression: dict[str, Any], fits: bool) -> None:
    term = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}]
        }
    }
    broken = with_pod(affinity={"nodeAffinity": term})
    assert lacking(broken, "r1-n00") == ("" if fits else "excluded by node affinity")


def test_the_node_selector_is_named() -> None:
    assert lacking(with_pod(nodeSelector={"pool": "a"}), "r1-n00") == "without the label pool=a"


def test_a_node_without_devices_says_which_rule_explains_it() -> None:
    broken = with_pod()
    broken.get("nvlinknodes", "r1-n00")["status"]["fabric"] = {"state": "broken"}
    broken.remove("resourceslices", "r1-n00")
    assert lacking(broken, "r1-n00") == "without channel devices (IMEX303)"


def test_pod_affinity_to_a_partition_names_the_rack() -> None:
    term = {"labelSelector": {"matchLabels": {"job": "train"}}, "topologyKey": "nvidia.com/gpu.clique"}
    rule = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert lacking(with_pod(affinity=rule), "r1-n00") == "outside of r0, where pods of its affinity run"


def test_the_first_pod_of_a_group_may_go_anywhere() -> None:
    assert lacking(with_pod(), "r1-n00") == ""


def test_affinity_to_pods_that_do_not_exist_fits_nowhere() -> None:
    term = {"labelSelector": {"matchLabels": {"job": "none"}}, "topologyKey": "nvidia.com/gpu.clique"}
    rule = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert lacking(with_pod(affinity=rule), "r1-n00") == "without the pods that its affinity requires"


def test_anti_affinity_excludes_a_node() -> None:
    selector = {"matchExpressions": [{"key": "job", "operator": "Exists"}]}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    broken = with_pod(affinity=rule)
    for pod in broken.objects["pods"]:
        pod["spec"]["containers"][0]["resources"].pop("limits")
    assert lacking(broken, "r0-n00") == "with a pod that its anti-affinity excludes"
    assert lacking(broken, "r1-n00") == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        (4, 4),
        ("500m", 0.5),
        ("250u", 0.00025),
        ("1Ki", 1024),
        ("926771656Ki", 926771656 * 1024),
        ("1Mi", 2**20),
        ("1.5Gi", 1.5 * 2**30),
        ("2Ti", 2**41),
        ("1Ei", 2**60),
        ("2k", 2000),
        ("2M", 2e6),
        ("1E", 1e18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", 1.2),
        ("1.", 1),
        (".5", 0.5),
        ("+1", 1),
        ("x", 0),
        ("1K", 0),
        ("1i", 0),
        ("1mi", 0),
        ("1e3Ki", 0),
        (True, 0),
        (None, 0),
    ],
)
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("resource", "amount", "lack"),
    [
        ("memory", "926771657Ki", "with too little free memory"),
        ("memory", "926771656Ki", ""),
        ("cpu", "145", "with too few free CPUs"),
        ("ephemeral-storage", "1Ti", "with too little free ephemeral-storage"),
        ("vendor.example/nic", "1", "with too few free vendor.example/nic"),
    ],
)
def test_resources_are_compared_with_what_the_kubelet_reports(resource: str, amount: str, lack: str) -> None:
    broken = with_pod()
    broken.get("pods", "new")["spec"]["containers"][0]["resources"] = {"requests": {resource: amount}}
    assert lacking(broken, "r1-n00") == lack


def test_requests_are_the_sum_of_containers_or_the_largest_init_container() -> None:
    broken = with_pod()
    spec = broken.get("pods", "new")["spec"]
    spec["containers"] = [{"name": name, "resources": {"requests": {"cpu": "1"}}} for name in "ab"]
    spec["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]
    cluster = broken.cluster()
    assert requests(cluster.pods_by_key[Key("team", "new")]) == {"cpu": 3.0}
