"""Findings as SARIF, and the page of rules."""

from typing import Any

import pytest

from imex_dra.lint.documents import read_source
from imex_dra.lint.findings import Finding
from imex_dra.lint.manifests import load
from imex_dra.lint.report import page, sarif, summary
from imex_dra.lint.rules import RULES, lint
from tests.paths import ROOT

ALLOWED: dict[str, dict[str, Any]] = {
    "sarifLog": {"$schema": str, "version": str, "runs": "run[]"},
    "run": {"tool": "tool", "columnKind": str, "results": "result[]"},
    "tool": {"driver": "toolComponent"},
    "toolComponent": {"name": str, "version": str, "rules": "reportingDescriptor[]"},
    "reportingDescriptor": {
        "id": str,
        "shortDescription": "multiformatMessageString",
        "fullDescription": "multiformatMessageString",
        "defaultConfiguration": "reportingConfiguration",
        "help": "multiformatMessageString",
    },
    "reportingConfiguration": {"level": str},
    "multiformatMessageString": {"text": str, "markdown": str},
    "result": {"ruleId": str, "ruleIndex": int, "level": str, "message": "message", "locations": "location[]"},
    "message": {"text": str},
    "location": {"physicalLocation": "physicalLocation", "logicalLocations": "logicalLocation[]"},
    "physicalLocation": {"artifactLocation": "artifactLocation", "region": "region"},
    "artifactLocation": {"uri": str},
    "region": {"startLine": int},
    "logicalLocation": {"fullyQualifiedName": str, "kind": str},
}
"""The part of the schema of SARIF 2.1.0 that is used. Every object of the schema forbids other fields."""


def check(value: Any, type_: Any) -> None:
    if isinstance(type_, type):
        assert type(value) is type_
        assert value != ""
    elif type_.endswith("[]"):
        for element in value:
            check(element, type_.removesuffix("[]"))
    else:
        assert set(value) <= set(ALLOWED[type_]), type_
        for key, item in value.items():
            check(item, ALLOWED[type_][key])


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return [f for rule in RULES for f in lint(load([read_source(f"{rule.id}.yaml", rule.bad)]))]


def test_sarif_has_the_structure_of_its_schema(findings: list[Finding]) -> None:
    log = sarif(findings, "1.0")
    check(log, "sarifLog")
    assert (log["version"], log["$schema"]) == ("2.1.0", "https://json.schemastore.org/sarif-2.1.0.json")
    (run,) = log["runs"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.id for rule in RULES]
    assert {rule["defaultConfiguration"]["level"] for rule in rules} == {"error", "warning", "note"}


def test_sarif_results_refer_to_their_rule_and_place(findings: list[Finding]) -> None:
    (run,) = sarif(findings, "1.0")["runs"]
    assert len(run["results"]) == len(RULES)
    for result, finding in zip(run["results"], findings, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding.id
        assert result["level"] == finding.severity
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == finding.file
        assert location["physicalLocation"]["region"]["startLine"] == finding.line


@pytest.mark.parametrize(
    ("file", "uri"), [("-", "stdin"), ("a b/c#d.yaml", "a%20b/c%23d.yaml"), ("/x/ü.yaml", "/x/%C3%BC.yaml")]
)
def test_sarif_names_files_as_uris(file: str, uri: str) -> None:
    (finding,) = lint(load([read_source(file, RULES[0].bad)]))
    (result,) = sarif([finding], "1.0")["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_the_summary_counts_by_severity(findings: list[Finding]) -> None:
    errors = [finding for finding in findings if finding.severity == "error"]
    assert summary(findings, 27) == "10 errors, 15 warnings, 3 notes in 27 files"
    assert summary(errors[:1], 1) == "1 error in 1 file"
    assert summary([], 2) == "no findings in 2 files"


def test_the_page_has_one_anchor_and_both_examples_per_rule() -> None:
    text = (ROOT / "docs/rules.md").read_text()
    assert page("")[1:] in text
    for rule in RULES:
        assert text.count(f"\n## {rule.id}\n") == 1
        assert f"[{rule.id}](#{rule.id.lower()})" in text
        assert f"```yaml\n{rule.bad}```" in text
        assert f"```yaml\n{rule.good}```" in text
