"""What each program may do on the API server: one table, from which RBAC is made and which tests compare
with the audit log. A verb that no program uses, or a use without a verb, is a bug.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    group: str
    resource: str
    verbs: frozenset[str]


def _rule(resource: str, verbs: str, group: str = "") -> Rule:
    return Rule(group, resource, frozenset(verbs.split()))


_DRA = "resource.k8s.io"
_PEER = "resource.nvidia.com"
_OURS = "imex-dra.io"

CONTROLLER: tuple[Rule, ...] = (
    _rule("computedomains", "get list watch patch", _PEER),
    _rule("computedomains/status", "patch", _PEER),
    _rule("resourceclaimtemplates", "get list watch create delete", _DRA),
    _rule("resourceclaims", "list watch", _DRA),
    _rule("nvlinknodes", "list watch", _OURS),
    _rule("nvlinkpartitions", "get list watch create", _OURS),
    _rule("nvlinkpartitions/status", "patch", _OURS),
    _rule("nodes", "list watch patch"),
    _rule("namespaces", "list watch"),
    _rule("events", "create patch", "events.k8s.io"),
    _rule("leases", "get create patch", "coordination.k8s.io"),
)

NODE: tuple[Rule, ...] = (
    _rule("nodes", "get"),
    _rule("resourceclaims", "get", _DRA),
    _rule("resourceslices", "get list watch create patch delete", _DRA),
    _rule("computedomains", "list watch", _PEER),
    _rule("nvlinknodes", "get create", _OURS),
    _rule("nvlinknodes/status", "patch", _OURS),
    _rule("nvlinkpartitions", "get list watch", _OURS),
)
