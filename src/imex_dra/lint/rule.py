"""What a rule is: one function, and everything that is said about it.

Its examples are the files `examples/<id>-bad.yaml` and `<id>-good.yaml`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Manifests
from imex_dra.lint.pods import Object
from imex_dra.lint.values import Value


class Problem(NamedTuple):
    """What a rule has found."""

    object: Object
    at: Value
    """Its line is that of the finding."""
    message: str
    next_step: str


Check = Callable[[Manifests], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    title: str
    why: str
    """One paragraph: what happens, and why."""
    check: Check

    @property
    def bad(self) -> str:
        """Manifests. The comment `# <-- ID` is on the line of the finding."""
        return _example(f"{self.id}-bad.yaml")

    @property
    def good(self) -> str:
        return _example(f"{self.id}-good.yaml")


def rule(id: str, severity: Severity, title: str, *, why: str) -> Callable[[Check], Rule]:
    def decorate(check: Check) -> Rule:
        return Rule(id, severity, title, " ".join(why.split()), check)

    return decorate


def _example(name: str) -> str:
    return resources.files(__package__).joinpath("examples", name).read_text(encoding="utf-8")
