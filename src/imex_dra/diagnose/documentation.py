"""The rules of running clusters, as a part of docs/rules.md."""

from imex_dra.diagnose.rule import Rule
from imex_dra.diagnose.rules import RULES
from imex_dra.lint.rules import find_rule as find_lint_rule

_INTRODUCTION = """
## Running clusters

What the commands that look at a cluster find. They read with your own rights, say what they could not read, and
never take that for an answer. A finding names the object, the cause, where it was seen, and the next step:

```
error IMEX303 Node r0-n01
  r0-n01: the NVLink fabric is broken (GPU 2: not registered with the fabric)
  → repair the node
```

A cause is one finding: of a node that is powered off, neither its IMEX daemon nor the ComputeDomains on it are
findings, too; of the pods of one workload, the first is named. Errors and warnings end with exit code 1, notes do
not; 2 means that the command could not run.
"""


def page() -> str:
    own = [rule for rule in RULES if find_lint_rule(rule.id) is None]
    shared = [rule for rule in RULES if find_lint_rule(rule.id) is not None]
    rows = "".join(f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {rule.title} |\n" for rule in own)
    links = ", ".join(f"[{rule.id}](#{rule.id.lower()})" for rule in shared)
    also = f"Of the rules of manifests, these are found on running pods, too: {links}.\n"
    table = f"| id | severity | title |\n|---|---|---|\n{rows}"
    return f"{_INTRODUCTION}\n{also}\n{table}{''.join(map(_section, own))}"


def _section(rule: Rule) -> str:
    return (
        f"\n## {rule.id}\n\n**{rule.title}** ({rule.severity})\n\n{rule.why}\n\nFor example:\n\n> {rule.finds}\n"
    )


def explanation(rule: Rule) -> str:
    """For a terminal."""
    return f"{rule.id} ({rule.severity}): {rule.title}\n\n{rule.why}\n\nFor example:\n\n    {rule.finds}\n"
