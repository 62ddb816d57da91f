"""One broken cluster per rule: the rule is the first finding, with the documented sentence, and no other one is an
error. A healthy cluster has no finding.
"""

import re

import pytest

from imex_dra.api.claimreasons import claim_not_here
from imex_dra.api.reasons import Reason
from imex_dra.diagnose.rule import Rule
from imex_dra.diagnose.rules import RULES, diagnose, find_rule
from imex_dra.lint.findings import Severity
from tests.diagnose.breakings import BREAKINGS, pending, waiting
from tests.diagnose.healthy import HERE, NOW, Broken, event
from tests.expected import expected_texts, functions
from tests.paths import ROOT

by_id = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def broken_by(id: str) -> Broken:
    broken = Broken()
    BREAKINGS[id](broken)
    return broken


def test_a_healthy_cluster_has_no_finding() -> None:
    assert Broken().findings() == []


def test_every_rule_has_a_broken_cluster() -> None:
    assert set(BREAKINGS) == {rule.id for rule in RULES}


@by_id
def test_the_cause_is_the_first_finding_and_no_other_one_is_an_error(rule: Rule) -> None:
    first, *others = broken_by(rule.id).findings()
    assert (first.id, first.message) == (rule.id, rule.finds)
    assert [other.id for other in others if other.severity is Severity.ERROR] == []
    assert first.severity is rule.severity
    assert first.object
    assert first.next_step
    assert not first.next_step.endswith(".")


def test_ids_are_in_order_and_say_what_they_concern() -> None:
    ids = [rule.id for rule in RULES]
    assert ids == sorted(set(ids))
    assert {id[4] for id in ids} == {"1", "2", "3", "4"}


def test_a_rule_is_found_by_its_id_in_any_case() -> None:
    found = find_rule("imex303")
    assert found is not None
    assert found.id == "IMEX303"
    assert find_rule("IMEX999") is None


def test_pods_of_one_workload_are_one_finding() -> None:
    broken = Broken()
    for name in ("worker-0", "worker-1"):
        del broken.get("pods", name)["spec"]["containers"][0]["resources"]["claims"]
    (finding,) = broken.findings()
    assert finding.object == "Pod team/worker-0 and 1 more of MPIJob team/train"


FROM_PODS_ALONE = {
    **{id: id for id in ("IMEX105", "IMEX107", "IMEX150", "IMEX151", "IMEX152", "IMEX401", "IMEX415")},
    # The scheduler says that the pod waits; why is in other objects.
    **dict.fromkeys(("IMEX101", "IMEX103", "IMEX402"), "IMEX401"),
    # Every reader gets the version, and the answer that a kind does not exist.
    "IMEX201": "IMEX201",
    "IMEX210": "IMEX210",
}
"""What a reader who may only see pods finds in the broken cluster of a rule; of the others nothing."""


@by_id
def test_what_cannot_be_read_is_never_a_finding(rule: Rule) -> None:
    """A reader who may only see pods gets no finding that claims something about other objects."""
    broken = broken_by(rule.id)
    for plural in list(broken.objects):
        if plural != "pods":
            broken.hide(plural)
    expected = FROM_PODS_ALONE.get(rule.id)
    assert [finding.id for finding in broken.findings()] == ([expected] if expected else [])


def test_gpus_with_the_same_fault_are_named_together() -> None:
    broken = Broken()
    BREAKINGS["IMEX303"](broken)
    gpus = [
        {"index": index, "state": "broken", "reason": "degraded" if index < 3 else "not registered"}
        for index in range(4)
    ]
    broken.get("nvlinknodes", "r0-n01")["status"]["gpus"] = gpus
    (finding,) = broken.findings()
    assert finding.evidence == "GPUs 0, 1, 2 are broken: degraded; GPU 3 is broken: not registered"


@pytest.mark.parametrize(
    "said",
    [
        "NodePrepareResources: rpc error: code = Unavailable desc = connection error: connection refused",
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        "DRA driver compute-domain.nvidia.com is not registered",
    ],
)
def test_a_pod_whose_kubelet_gets_no_answer_is_an_error_although_its_node_has_only_a_warning(said: str) -> None:
    broken = Broken()
    BREAKINGS["IMEX308"](broken)
    pending(broken)
    text = f"Failed to prepare dynamic resources: prepare dynamic resources: {said}"
    broken.add("events", event("Pod", "worker-1", "FailedPrepareDynamicResources", text))
    finding, other = diagnose(broken.cluster())
    assert (finding.id, other.id) == ("IMEX404", "IMEX308")
    assert finding.message.endswith("is not prepared on r0-n01: imex node does not answer the kubelet")
    assert finding.next_step.startswith("check that imex node runs there")


def test_a_pod_that_the_scheduler_has_not_seen_is_named() -> None:
    """Because of spec.nodeName. The events of a real kubelet say so, too."""
    broken = Broken()
    pending(broken, "worker-0")
    broken.get("resourceclaims", "worker-0-imex")["status"] = {}
    said = "prepare dynamic resources: pod worker-0 (uid) is not allowed to use ResourceClaim worker-0-imex (uid)"
    text = f"Failed to prepare dynamic resources: {said}"
    broken.add("events", event("Pod", "worker-0", "FailedPrepareDynamicResources", text))
    (finding,) = broken.findings()
    assert finding.id == "IMEX403"
    assert finding.message == "claim team/worker-0-imex is not allocated, although the pod is on r0-n00"
    assert (finding.evidence, "spec.nodeName" in finding.next_step) == (text, True)


def test_a_shared_claim_that_is_allocated_on_another_node_is_named() -> None:
    """Kubernetes reserves it for a pod with spec.nodeName, and the driver on that node refuses it."""
    broken = Broken()
    pod, claim = broken.get("pods", "worker-1"), broken.get("resourceclaims", "worker-0-imex")
    pending(broken)
    broken.remove("resourceclaims", "worker-1-imex")
    pod["spec"]["resourceClaims"] = [{"name": "imex", "resourceClaimName": "worker-0-imex"}]
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "worker-1", "uid": pod["metadata"]["uid"]})
    said = claim_not_here(claim="team/worker-0-imex", node="r0-n01", cause="it is allocated elsewhere").message()
    broken.add("events", event("Pod", "worker-1", "FailedPrepareDynamicResources", said))
    (finding,) = broken.findings()
    assert (finding.id, finding.object) == ("IMEX404", "Pod team/worker-1")


def test_another_driver_is_one_finding_of_the_cluster_and_none_of_each_node() -> None:
    broken = Broken()
    BREAKINGS["IMEX203"](broken)
    said = broken.get("nvlinkpartitions", HERE)["status"]["conditions"][-1]["message"]
    for node in ("r0-n00", "r0-n01", "r1-n00", "r1-n01"):
        broken.condition("nvlinknodes", node, "Ready", "False", Reason.OTHER_DRIVER_PRESENT, said)
    assert [finding.id for finding in broken.findings()] == ["IMEX203"]


def test_a_pod_whose_affinity_selects_no_pod_is_told_to_change_its_labels() -> None:
    broken = Broken()
    waiting(broken)
    term = {"topologyKey": "nvidia.com/gpu.clique", "labelSelector": {"matchLabels": {"job": "rung"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    broken.get("pods", "worker-1")["spec"]["affinity"] = affinity
    (finding,) = broken.findings()
    assert finding.id == "IMEX401"
    assert finding.next_step == "give the pod the labels that its pod affinity selects (IMEX142)"


def test_a_pod_that_waits_for_a_shared_claim_is_told_to_use_a_template() -> None:
    broken = Broken()
    waiting(broken)
    spec = broken.get("pods", "worker-1")["spec"]
    spec["resourceClaims"] = [{"name": "imex", "resourceClaimName": "worker-0-imex"}]
    spec["nodeSelector"] = {"kubernetes.io/hostname": "r1-n00"}
    del spec["affinity"]
    (finding,) = broken.findings()
    assert finding.id == "IMEX401"
    assert "1 without claim worker-0-imex, which is allocated on r0-n00" in finding.message
    assert finding.next_step.endswith("use resourceClaimTemplateName (IMEX109)")


def replaced(broken: Broken) -> None:
    """worker-1 is terminating, and its Job has created worker-2, which waits for its node."""
    broken.job("worker-2", "")
    broken.get("pods", "worker-1")["metadata"]["deletionTimestamp"] = NOW


def test_a_pod_that_is_deleted_needs_no_node() -> None:
    broken = Broken()
    replaced(broken)
    (finding,) = broken.findings()
    assert finding.id == "IMEX401"
    assert finding.next_step == "wait until the pods that are being deleted have ended: worker-1"


def test_a_job_that_stays_too_large_is_found_with_the_number_of_pods_that_are_not_deleted() -> None:
    broken = Broken()
    replaced(broken)
    broken.job("worker-3", "")
    finding = broken.findings()[0]
    assert finding.id == "IMEX402"
    assert finding.message == (
        "MPIJob team/train needs 3 nodes of one partition, and none has as many: r0 has 2 (1 of its pods run"
        " there), r1 has 2"
    )


def recreated(broken: Broken) -> None:
    """Under its old name, as without its finalizer; its pods run."""
    broken.get("computedomains", "train")["metadata"]["uid"] = "uid-new"
    broken.get("nvlinkpartitions", HERE)["status"]["channels"] = []


def test_a_pod_that_runs_with_a_claim_of_a_computedomain_that_is_gone_is_named() -> None:
    broken = Broken()
    recreated(broken)
    (finding,) = broken.findings()
    assert (finding.id, finding.object) == ("IMEX405", "Pod team/worker-0 and 1 more of MPIJob team/train")
    assert finding.message.endswith("has no ComputeDomain with this UID: it was deleted or recreated")


def test_a_pod_that_is_deleted_after_its_computedomain_is_no_finding() -> None:
    broken = Broken()
    recreated(broken)
    for name in ("worker-0", "worker-1"):
        broken.get("pods", name)["metadata"]["deletionTimestamp"] = NOW
    assert broken.findings() == []


ONLY_OBJECTS = {
    "IMEX210": "no API server here is older than 1.34",
    "IMEX316": "the driver of simulated racks does not run in pods",
}
"""Rules that no simulated rack breaks, and why; `BREAKINGS` has objects for each."""


def test_every_other_rule_is_also_broken_in_a_running_cluster() -> None:
    """Its id is compared in a test, or shown by a command of a page whose output is compared."""
    tests = (ROOT / "tests/sandbox/diagnosed").glob("test_*.py")
    compared = {
        text
        for file in (*tests, ROOT / "tests/cli/test_installation.py")
        for function in functions(file.read_text())
        for text in expected_texts(function)
    }
    page = (ROOT / "docs/practice.md").read_text()
    shown = set(re.findall(r"^(?:error|warning|note) (IMEX\d{3}) ", page, re.MULTILINE))
    assert {rule.id for rule in RULES} - compared - shown == ONLY_OBJECTS.keys()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert found() == ['IMEX999']", True),
        ("until(lambda: found() == ['IMEX999'])", True),
        ("expected = {'IMEX999'}\n    assert found() == expected", True),
        ("for id in ('IMEX999', 'x'):\n        assert id in found()", True),
        ("'IMEX999 in a docstring'; 'IMEX999'", False),
        ("pass  # IMEX999", False),
        ("break_it('IMEX999')\n    assert found() == []", False),
        ("unused = 'IMEX999'\n    assert found() == []", False),
    ],
)
def test_only_what_a_test_compares_counts(body: str, expected: bool) -> None:
    (function,) = functions(f"def test_x() -> None:\n    {body}\n")
    assert ("IMEX999" in expected_texts(function)) is expected
