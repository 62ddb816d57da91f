"""The table of all rules, and `lint`, which applies them."""

import re
from collections.abc import Collection, Iterable

from imex_dra.lint import claimrules, configrules, domainrules, isolationrules, placementrules, templaterules
from imex_dra.lint.findings import Finding
from imex_dra.lint.manifests import Manifests
from imex_dra.lint.rule import Problem, Rule

RULES: tuple[Rule, ...] = (
    *templaterules.RULES,
    *claimrules.RULES,
    *domainrules.RULES,
    *configrules.RULES,
    *placementrules.RULES,
    *isolationrules.RULES,
)
"""In the order of their ids. An id is fixed for ever, and never used for another rule."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def find_rule(id: str) -> Rule | None:
    return next((rule for rule in RULES if rule.id == id.upper()), None)


def lint(manifests: Manifests, ignored: Collection[str] = ()) -> list[Finding]:
    """All findings, in the order of files, lines and rules."""
    order = {file: number for number, file in enumerate(manifests.ignored)}
    findings = {
        finding
        for rule in RULES
        if rule.id not in ignored
        for finding in _findings(rule, rule.check(manifests))
        if rule.id not in manifests.ignored.get(finding.file, {}).get(finding.line, ())
    }
    return sorted(findings, key=lambda f: (order.get(f.file, 0), f.file, f.line, f.id, f.object, f.message))


def _findings(rule: Rule, problems: Iterable[Problem]) -> Iterable[Finding]:
    for problem in problems:
        yield Finding(
            id=rule.id,
            severity=rule.severity,
            file=problem.object.file,
            line=problem.at.line,
            object=_one_line(str(problem.object)),
            message=_one_line(problem.message),
            next_step=_one_line(problem.next_step),
        )


def _one_line(text: str) -> str:
    """Names in it may contain anything, also what controls a terminal."""
    return _CONTROL.sub("?", text)
