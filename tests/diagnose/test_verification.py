"""Verification: every rule belongs to one check, and scopes select what concerns a reader."""

from collections import Counter

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.diagnose.rules import RULES
from imex_dra.diagnose.verification import CHECKS, Check, Verdict, scope_of, verify
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken


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


@pytest.mark.parametrize("subject", ["pod/x", "computedomain/x", "node/x", "job/train"])
def test_an_object_that_does_not_exist_is_rejected(subject: str) -> None:
    with pytest.raises(Rejected, match="there is no"):
        verdicts(Broken(), "team", subject)
