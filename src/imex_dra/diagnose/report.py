"""Findings, overviews and explanations as styled lines (`picture.text`). Pure: nothing is printed here."""

import textwrap
from collections.abc import Iterable, Sequence

from imex_dra.diagnose.chain import Explanation, LinkReport, State
from imex_dra.diagnose.overview import Overview, PartitionStatus
from imex_dra.diagnose.retirement import Retirement, Step, StepState
from imex_dra.diagnose.rule import Finding
from imex_dra.diagnose.verification import CheckResult, Verdict, Verification, Verified
from imex_dra.lint.findings import Severity
from imex_dra.picture.text import Line, Lines, line

STYLES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.NOTE: "label"}
_MIN_WIDTH = 40
_MAX_NAMESPACES = 8
"""That a line names."""


def finding_lines(finding: Finding, width: int) -> Lines:
    """What, why, and the next step."""
    head = line((f"{finding.severity} {finding.id}", STYLES[finding.severity]), f" {finding.object}")
    return (
        head,
        *wrapped(finding.message, width),
        *(wrapped(finding.evidence, width, "dim", "  seen: ") if finding.evidence else ()),
        *wrapped(finding.next_step, width, "good", "  → "),
    )


def wrapped(text: str, width: int, style: str = "", prefix: str = "  ") -> Lines:
    room = max(width, _MIN_WIDTH) - len(prefix)
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    indent = " " * len(prefix)
    return tuple(line(((indent if number else prefix) + part, style)) for number, part in enumerate(parts))


def findings_lines(findings: Sequence[Finding], width: int) -> Lines:
    return tuple(one for finding in findings for one in (*finding_lines(finding, width), line()))


def summary(findings: Iterable[Finding]) -> str:
    counts: dict[Severity, int] = {}
    for finding in findings:
        counts[finding.severity] = counts.get(finding.severity, 0) + 1
    parts = [f"{n} {severity}{'' if n == 1 else 's'}" for severity in Severity if (n := counts.get(severity, 0))]
    return ", ".join(parts) or "no findings"


def missing_lines(missing: Sequence[str], width: int) -> Lines:
    """What the reader may not see, so that silence about it is no good news."""
    if not missing:
        return ()
    return wrapped(f"not checked: {'; '.join(missing)}", width, "dim", "")


def overview_lines(overview: Overview, width: int) -> Lines:
    """What stands below the picture."""
    return (
        *_partition_lines(overview),
        *_daemon_lines(overview, width),
        line(),
        *findings_lines(overview.findings, width),
        *missing_lines(overview.missing, width),
    )


def _partition_lines(overview: Overview) -> Lines:
    columns = max((len(partition.rack) for partition in overview.partitions), default=0)
    return tuple(
        line(
            (f"{partition.rack:<{columns}}  ", "name"),
            (_free(partition), "count" if partition.free_nodes else "warn"),
            (
                f"  {partition.channels} channel{'' if partition.channels == 1 else 's'} in use  {partition.name}",
                "dim",
            ),
        )
        for partition in overview.partitions
    )


def _free(partition: PartitionStatus) -> str:
    return f"{len(partition.free_nodes):>2} of {partition.nodes} nodes free"


def _daemon_lines(overview: Overview, width: int) -> Lines:
    """Which may be restarted now is a finding of its own; here are those that are in use."""
    used = [daemon for daemon in overview.old_daemons if not daemon.may_restart]
    if not used:
        return ()
    nodes = ", ".join(daemon.node for daemon in used)
    text = f"old IMEX daemons in use, to be restarted when their pods have ended: {nodes}"
    return wrapped(text, width, "warn", "")


def domain_lines(overview: Overview) -> Lines:
    """For output without a picture."""
    return tuple(
        line(
            (f"{domain.namespace}/{domain.name}", "name"),
            (f"  {domain.status}", "good" if domain.status == "Ready" else "warn"),
            f"  {domain.pods} pods",
            ("  " + ", ".join(f"channel {number} in {rack}" for rack, number in domain.channels.items()), "dim"),
        )
        for domain in overview.compute_domains
    )


_MARKS = {
    State.OK: ("✓", "good"),
    State.WARNING: ("!", "warn"),
    State.BROKEN: ("✗", "bad"),
    State.WAITING: ("·", "dim"),
}


def explanation_lines(explanation: Explanation, width: int) -> Lines:
    """The chain, the first broken link with its evidence, and what else was found."""
    columns = max(len(link.link) for link in explanation.links)
    chain = tuple(part for link in explanation.links for part in _link_lines(link, columns, width))
    fits = tuple(part for fit in explanation.partitions for part in wrapped(str(fit), width))
    where = (line(("nodes that fit, per partition:", "name")), *fits, line()) if fits else ()
    return (
        line((explanation.subject, "title")),
        *chain,
        line(),
        *where,
        *findings_lines(explanation.findings, width),
        *missing_lines(explanation.missing, width),
        _verdict(explanation),
    )


def _link_lines(link: LinkReport, columns: int, width: int) -> Lines:
    mark, style = _MARKS[link.state]
    fact_style = "dim" if link.state is State.WAITING else ""
    first, *others = wrapped(link.fact or "nothing yet", width, fact_style, " " * (columns + 5))
    text, text_style = first[0]
    head = line((f" {mark} ", style), (f"{link.link:<{columns}}", "name"), ("  " + text.lstrip(), text_style))
    return (head, *others)


def _verdict(explanation: Explanation) -> Line:
    if explanation.broken is None:
        return last_line(explanation.findings)
    first = explanation.findings[0]
    return line(("first broken link: ", ""), (str(explanation.broken.link), "bad"), f" ({first.id})")


_VERDICTS = {
    Verdict.PASSED: ("✓", "good"),
    Verdict.WARNING: ("!", "warn"),
    Verdict.FAILED: ("✗", "bad"),
    Verdict.WAITING: ("·", "warn"),
    Verdict.UNKNOWN: ("?", "dim"),
}


def verification_lines(verification: Verification, width: int) -> Lines:
    return (
        *((line((scope_sentence(verification.scope), "title")),) if verification.scope else ()),
        *(_check_line(check) for check in verification.checks),
        line(),
        *findings_lines(verification.findings, width),
        *missing_lines(verification.missing, width),
        last_line(verification.findings),
    )


def scope_sentence(scope: Verified) -> str:
    """What was verified."""
    named = ", ".join(scope.namespaces[:_MAX_NAMESPACES])
    others = len(scope.namespaces) - _MAX_NAMESPACES
    more = f" and {others} more" if others > 0 else ""
    where = f" ({named}{more})" if named and scope.subject != f"namespace {named}" else ""
    pods = _number(scope.pods, "pod") + (f" ({scope.claiming_pods} with a channel claim)" if scope.pods else "")
    domains, nodes = _number(scope.compute_domains, "ComputeDomain"), _number(scope.nodes, "node")
    return f"{scope.subject}{where}: {pods}, {domains}, {nodes}"


def _number(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _check_line(check: CheckResult) -> Line:
    mark, style = _VERDICTS[check.verdict]
    return line((f"{mark} ", style), check.title, (f": {check.count}" if check.count else "", "dim"))


def fails(findings: Iterable[Finding]) -> bool:
    """Notes do not fail."""
    return any(finding.severity is not Severity.NOTE for finding in findings)


def last_line(findings: Sequence[Finding]) -> Line:
    worst = next((severity for severity in Severity if any(f.severity is severity for f in findings)), None)
    return line((summary(findings), STYLES[worst] if worst else "good"))


_STEP_MARKS = {StepState.DONE: ("✓", "good"), StepState.TO_DO: ("·", "warn"), StepState.UNKNOWN: ("?", "dim")}


def retirement_lines(retirement: Retirement, width: int) -> Lines:
    """The steps in their order."""
    steps = (part for number, step in enumerate(retirement.steps, 1) for part in _step_lines(number, step, width))
    number = len(retirement.workloads)
    verdict = f"{number} workload{' uses' if number == 1 else 's use'} the old model"
    return (
        *steps,
        line(),
        *missing_lines(retirement.missing, width),
        line((verdict if number else "no workload is known to use the old model", "warn" if number else "good")),
    )


def _step_lines(number: int, step: Step, width: int) -> Lines:
    mark, style = _STEP_MARKS[step.state]
    head, *others = wrapped(step.title, width, "", f"  {number}. ")
    details = (part for detail in step.details for part in wrapped(detail, width, "dim", "     "))
    return (line((mark, style), head[0][0][1:]), *others, *details)
