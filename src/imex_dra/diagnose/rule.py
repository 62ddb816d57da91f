"""What a rule of a running cluster is: one function, and everything that is said about it.

As in `lint.rule`. A rule also says which link of the chain it concerns, so that `imex explain` finds the first one
that is broken. `finds` is an example of its finding; a test breaks a cluster in this way, and compares.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from imex_dra.api.meta import Key, Object, key_of
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.lint.findings import Severity


class Link(StrEnum):
    """In the order of the chain."""

    DRIVER = "driver"
    POD = "pod"
    TEMPLATE = "template"
    DOMAIN = "ComputeDomain"
    CLAIM = "claim"
    PARTITION = "partition"
    FABRIC = "fabric"
    DAEMON = "daemon"
    CHANNEL = "channel"


class Problem(NamedTuple):
    """What a rule has found."""

    kind: str
    key: Key
    message: str
    next_step: str
    evidence: str = ""
    """Where it can be seen, or what another program says about it."""
    nodes: frozenset[str] = frozenset()
    """Nodes that it concerns."""
    pods: frozenset[Key] = frozenset()
    """Pods that it concerns; of a node or ComputeDomain, they follow from it."""


class Finding(Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    """Of the rule. An id never changes its meaning."""
    severity: Severity
    link: Link
    object: str
    """Kind, and namespace/name."""
    message: str
    next_step: str
    evidence: str = ""
    nodes: tuple[str, ...] = ()


Check = Callable[[Cluster], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    link: Link
    title: str
    why: str
    """One paragraph: what happens, and why."""
    finds: str
    """Message of a finding."""
    check: Check

    def problems(self, cluster: Cluster) -> list[Problem]:
        """Found once per snapshot, because rules also ask what other rules found."""
        if self.id not in cluster.memo:
            cluster.memo[self.id] = list(self.check(cluster))
        found: list[Problem] = cluster.memo[self.id]
        return found


def rule(id: str, severity: Severity, link: Link, title: str, *, why: str, finds: str) -> Callable[[Check], Rule]:
    def decorate(check: Check) -> Rule:
        return Rule(id, severity, link, title, " ".join(why.split()), " ".join(finds.split()), check)

    return decorate


def about(obj: Object, kind: str, message: str, next_step: str, evidence: str = "", *nodes: str) -> Problem:
    return Problem(kind, key_of(obj), message, next_step, evidence, frozenset(nodes))


def about_pod(pod: ClusterPod, message: str, next_step: str, evidence: str = "", *nodes: str) -> Problem:
    return Problem("Pod", pod.key, message, next_step, evidence, frozenset(nodes), frozenset({pod.key}))


def about_node(name: str, message: str, next_step: str, evidence: str = "") -> Problem:
    return Problem("Node", Key("", name), message, next_step, evidence, frozenset({name}))
