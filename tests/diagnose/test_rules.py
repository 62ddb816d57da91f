"""One broken cluster per rule: the rule is the first finding, with the documented sentence, and no other one is an
error. A healthy cluster has no finding.
"""

import re

import pytest

from imex_dra.diagnose.rule import Rule
from imex_dra.diagnose.rules import RULES, diagnose, find_rule
from imex_dra.lint.findings import Severity
from tests.diagnose.breakings import BREAKINGS, pending
from tests.diagnose.healthy import Broken, event
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


@by_id
def test_what_cannot_be_read_is_never_a_finding(rule: Rule) -> None:
    """A reader who may only see pods gets no finding that claims something about other objects."""
    broken = broken_by(rule.id)
    for plural in list(broken.objects):
        if plural != "pods":
            broken.hide(plural)
    assert {finding.id for finding in broken.findings()} <= {rule.id, "IMEX401"}


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


ONLY_OBJECTS = {
    "IMEX210": "no API server here is older than 1.34",
    "IMEX316": "the driver of simulated racks does not run in pods",
    "IMEX403": "the controllers of Kubernetes reserve such a claim for its pod a moment later",
}
"""Rules that no simulated rack breaks, and why; `BREAKINGS` has objects for each."""


def test_every_other_rule_is_also_broken_in_a_running_cluster() -> None:
    tests = (ROOT / "tests/sandbox/diagnosed").glob("test_*.py")
    files = [*tests, ROOT / "tests/cli/test_installation.py", ROOT / "docs/practice.md"]
    named = {id for file in files for id in re.findall(r"IMEX\d{3}", file.read_text())}
    assert {rule.id for rule in RULES} - named == ONLY_OBJECTS.keys()
