"""Findings as text, JSON or SARIF, and rules as documentation. Pure: nothing is printed here."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from imex_dra.lint.findings import Finding, Severity
from imex_dra.lint.rule import Rule
from imex_dra.lint.rules import RULES

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def line_of(finding: Finding) -> str:
    """As compilers do it, so that editors find the place."""
    place = f"{finding.file}:{finding.line}"
    cause = f"{finding.object}: {finding.message}; {finding.next_step}"
    return f"{place}: {finding.severity} {finding.id} {cause}"


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    numbers = dict.fromkeys(("errors", "warnings", "notes"), 0)
    for finding in findings:
        numbers[f"{finding.severity}s"] += 1
    return numbers


def summary(findings: Sequence[Finding], files: int) -> str:
    where = f"{files} file{'' if files == 1 else 's'}"
    if not findings:
        return f"no findings in {where}"
    parts = (
        f"{number} {name if number > 1 else name.removesuffix('s')}"
        for name, number in counts(findings).items()
        if number
    )
    return f"{', '.join(parts)} in {where}"


def plain(findings: Sequence[Finding]) -> dict[str, Any]:
    """For JSON and YAML."""
    return {
        "findings": [
            {
                "id": finding.id,
                "severity": str(finding.severity),
                "file": finding.file,
                "line": finding.line,
                "object": finding.object,
                "message": finding.message,
                "nextStep": finding.next_step,
            }
            for finding in findings
        ],
        "summary": counts(findings),
    }


def sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """SARIF 2.1.0, which code review tools show beside the lines."""
    indexes = {rule.id: index for index, rule in enumerate(RULES)}
    driver = {"name": "imex lint", "version": version, "rules": [_sarif_rule(rule) for rule in RULES]}
    results = [_sarif_result(finding, indexes[finding.id]) for finding in findings]
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": str(rule.severity)},
        "help": {"text": explanation(rule), "markdown": markdown(rule)},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    uri = "stdin" if finding.file == "-" else quote(PurePath(finding.file).as_posix())
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri},
            "region": {"startLine": max(finding.line, 1)},
        },
        "logicalLocations": [{"fullyQualifiedName": finding.object, "kind": "object"}],
    }
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": str(finding.severity),
        "message": {"text": f"{finding.object}: {finding.message}; {finding.next_step}"},
        "locations": [place],
    }


def explanation(rule: Rule) -> str:
    """For a terminal."""
    examples = f"Bad:\n\n{_indented(rule.bad)}\nGood:\n\n{_indented(rule.good)}"
    return f"{rule.id} ({rule.severity}): {rule.title}\n\n{rule.why}\n\n{examples}"


def markdown(rule: Rule) -> str:
    return (
        f"{rule.why}\n\nBad; the comment marks the line of the finding:\n\n```yaml\n{rule.bad}```\n\n"
        f"Good:\n\n```yaml\n{rule.good}```\n"
    )


def page(introduction: str) -> str:
    """docs/rules.md."""
    rows = "".join(f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {rule.title} |\n" for rule in RULES)
    table = f"| id | severity | title |\n|---|---|---|\n{rows}"
    sections = "".join(
        f"\n## {rule.id}\n\n**{rule.title}** ({rule.severity})\n\n{markdown(rule)}" for rule in RULES
    )
    return f"{introduction}\n{table}{sections}"


def fails(findings: Iterable[Finding], *, strict: bool) -> bool:
    return any(strict or finding.severity is Severity.ERROR for finding in findings)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
