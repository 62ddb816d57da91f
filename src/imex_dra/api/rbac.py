"""What each program may do on the API server: one table, and the RBAC manifests generated from it.

Tests compare the table with the audit log. A verb that no program uses is a bug, as is a request without a verb.
"""

from dataclasses import dataclass
from typing import Any

from imex_dra.api.names import NAMESPACE


@dataclass(frozen=True, slots=True)
class Rule:
    group: str
    resource: str
    verbs: frozenset[str]


def _rule(resource: str, verbs: str, group: str = "") -> Rule:
    return Rule(group, resource, frozenset(verbs.split()))


_DRA = "resource.k8s.io"
_NVIDIA = "resource.nvidia.com"
_IMEX_DRA = "imex-dra.io"

ACCOUNTS: dict[str, tuple[Rule, ...]] = {
    "imex-controller": (
        _rule("computedomains", "get list watch patch", _NVIDIA),
        _rule("computedomains/status", "patch", _NVIDIA),
        _rule("resourceclaimtemplates", "get list watch create delete", _DRA),
        _rule("resourceclaims", "list watch", _DRA),
        _rule("nvlinknodes", "list watch", _IMEX_DRA),
        _rule("nvlinkpartitions", "get list watch create patch delete", _IMEX_DRA),
        _rule("nvlinkpartitions/status", "patch", _IMEX_DRA),
        _rule("nodes", "list watch patch"),
        _rule("namespaces", "list watch"),
        _rule("events", "create patch", "events.k8s.io"),
        _rule("leases", "get list watch create patch", "coordination.k8s.io"),
        # Where another driver of the same name shows (controller/otherdriver.py).
        _rule("daemonsets", "list watch", "apps"),
        _rule("resourceslices", "list watch", _DRA),
    ),
    "imex-node": (
        _rule("nodes", "get"),
        _rule("resourceclaims", "get", _DRA),
        _rule("resourceslices", "get list watch create patch delete", _DRA),
        _rule("computedomains", "list watch", _NVIDIA),
        _rule("nvlinknodes", "get create", _IMEX_DRA),
        _rule("nvlinknodes/status", "patch", _IMEX_DRA),
        _rule("nvlinkpartitions", "get list watch", _IMEX_DRA),
    ),
}
"""Rules by ServiceAccount. `imex daemon` does not talk to the API server."""


def manifests() -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for name, rules in ACCOUNTS.items():
        documents += [_account(name), _role(name, rules), _binding(name)]
    return documents


def _account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}


def _role(name: str, rules: tuple[Rule, ...]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [r.group], "resources": [r.resource], "verbs": sorted(r.verbs)} for r in rules],
    }


def _binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    }
