"""The table of all rules of a running cluster, and `diagnose`, which applies them."""

import re
from collections.abc import Iterable

from imex_dra.api.meta import Key
from imex_dra.diagnose import (
    clusterrules,
    daemonrules,
    domainrules,
    noderules,
    partitionrules,
    podrules,
    setuprules,
    specrules,
)
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.rule import Finding, Link, Problem, Rule
from imex_dra.diagnose.scope import EVERYTHING, Scope
from imex_dra.lint.findings import Severity

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *specrules.RULES,
            *clusterrules.RULES,
            *setuprules.RULES,
            *noderules.RULES,
            *partitionrules.RULES,
            *daemonrules.RULES,
            *podrules.RULES,
            *domainrules.RULES,
        ),
        key=lambda rule: rule.id,
    )
)
"""In the order of their ids. An id is fixed for ever, and has the same meaning as in `lint`."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SEVERITIES = list(Severity)
_LINKS = list(Link)


def find_rule(id: str) -> Rule | None:
    return next((rule for rule in RULES if rule.id == id.upper()), None)


def diagnose(cluster: Cluster, scope: Scope = EVERYTHING) -> list[Finding]:
    """Errors first, then in the order of the chain. Of the pods of one workload, only the first is named."""
    findings = [
        finding
        for rule in RULES
        for finding in _findings(cluster, rule, (p for p in rule.problems(cluster) if scope.concerns(cluster, p)))
    ]
    return sorted(findings, key=lambda f: (_SEVERITIES.index(f.severity), _LINKS.index(f.link), f.id))


def _findings(cluster: Cluster, rule: Rule, problems: Iterable[Problem]) -> Iterable[Finding]:
    by_workload: dict[object, list[Problem]] = {}
    for problem in problems:
        pod = cluster.pods_by_key.get(problem.key) if problem.kind == "Pod" else None
        own: object = (problem.kind, problem.key, problem.message)
        by_workload.setdefault(cluster.workload(pod) if pod else own, []).append(problem)
    for workload, found in by_workload.items():
        yield _finding(rule, found[0], f"{len(found) - 1} more of {workload}" if len(found) > 1 else "")


def _finding(rule: Rule, problem: Problem, others: str) -> Finding:
    named = f"{problem.kind} {problem.key}" if problem.key != Key("", "") else problem.kind
    return Finding(
        id=rule.id,
        severity=rule.severity,
        link=rule.link,
        object=_one_line(named + (f" and {others}" if others else "")),
        message=_one_line(problem.message),
        next_step=_one_line(problem.next_step),
        evidence=_one_line(problem.evidence),
        nodes=tuple(sorted(problem.nodes)),
    )


def _one_line(text: str) -> str:
    """Names and messages in it may contain anything, also what controls a terminal."""
    return _CONTROL.sub(" ", text).strip()
