"""Every rule has a bad example, in which lint finds exactly that rule, on that line, and a good one without
findings.
"""

from importlib import resources

import pytest

from imex_dra.lint.rule import Rule
from imex_dra.lint.rules import RULES, find_rule
from tests.lint.marked import findings, found, marked

by_id = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


@by_id
def test_the_bad_example_breaks_exactly_its_rule(rule: Rule) -> None:
    assert len(marked(rule.bad)) == 1
    assert found(rule.bad) == marked(rule.bad)
    assert [id for _, id in marked(rule.bad)] == [rule.id]


@by_id
def test_the_good_example_has_no_finding(rule: Rule) -> None:
    assert findings(rule.good) == []
    assert marked(rule.good) == []


@by_id
def test_a_finding_names_the_object_the_cause_and_the_next_step(rule: Rule) -> None:
    (finding,) = findings(rule.bad)
    assert finding.severity == rule.severity
    assert finding.object.split()[1]
    assert finding.message
    assert finding.next_step
    assert not finding.message.endswith(".")


def test_ids_are_unique_and_in_order() -> None:
    ids = [rule.id for rule in RULES]
    assert ids == sorted(set(ids))
    assert all(id.startswith("IMEX1") and len(id) == 7 for id in ids)


def test_every_example_belongs_to_a_rule() -> None:
    names = {file.name for file in resources.files("imex_dra.lint").joinpath("examples").iterdir()}
    assert names == {f"{rule.id}-{kind}.yaml" for rule in RULES for kind in ("bad", "good")}


def test_a_rule_is_found_by_its_id_in_any_case() -> None:
    assert find_rule("imex101") is RULES[0]
    assert find_rule("IMEX999") is None
