"""What each program may do on the API server: one table, and the RBAC manifests generated from it.

Tests compare the table with the audit log. A verb that no program uses is a bug, as is a request without a verb.
"""

from dataclasses import dataclass
from typing import Any

from imex_dra.api.names import AUTHORITY_SECRET, DAEMON_SECRET, NAMESPACE, WEBHOOK, WEBHOOK_SECRET


@dataclass(frozen=True, slots=True)
class Rule:
    group: str
    resource: str
    verbs: frozenset[str]
    own_namespace: bool = False
    """Only in the namespace of the driver: a Role, not a ClusterRole."""
    names: tuple[str, ...] = ()
    """Only objects of these names; empty: all."""


def _rule(
    resource: str, verbs: str, group: str = "", *, own_namespace: bool = False, names: tuple[str, ...] = ()
) -> Rule:
    return Rule(group, resource, frozenset(verbs.split()), own_namespace, names)


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
        _rule("leases", "get create patch", "coordination.k8s.io", own_namespace=True),
        # Certificates of IMEX daemons and of the webhook. RBAC cannot restrict names of objects that are created.
        _rule("secrets", "create", own_namespace=True),
        _rule("secrets", "get patch", own_namespace=True, names=(AUTHORITY_SECRET, DAEMON_SECRET, WEBHOOK_SECRET)),
        _rule("validatingwebhookconfigurations", "get patch", "admissionregistration.k8s.io", names=(WEBHOOK,)),
        _rule("mutatingwebhookconfigurations", "get patch", "admissionregistration.k8s.io", names=(WEBHOOK,)),
        # Where another driver of the same name shows (controller/otherdriver.py).
        _rule("leases", "list watch", "coordination.k8s.io"),
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
    "imex-webhook": (
        _rule("computedomains", "list watch", _NVIDIA),
        _rule("nvlinkpartitions", "list watch", _IMEX_DRA),
        _rule("resourceclaimtemplates", "get", _DRA),
    ),
}
"""Rules by ServiceAccount. nvidia-imex and its supervisor do not talk to the API server."""

USERS: dict[str, tuple[tuple[str, ...], tuple[Rule, ...]]] = {
    "imex-dra-view": (
        ("view", "edit", "admin"),
        (
            _rule("computedomains", "get list watch", _NVIDIA),
            _rule("nvlinkpartitions", "get list watch", _IMEX_DRA),
            _rule("nvlinknodes", "get list watch", _IMEX_DRA),
        ),
    ),
    "imex-dra-edit": (
        ("edit", "admin"),
        (_rule("computedomains", "create update patch delete deletecollection", _NVIDIA),),
    ),
}
"""ClusterRoles for users: the roles of Kubernetes that they are added to, and their rules. None has status."""


def manifests() -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for name, rules in ACCOUNTS.items():
        documents += [
            _account(name),
            *_permissions("ClusterRole", name, [r for r in rules if not r.own_namespace]),
        ]
        if own := [rule for rule in rules if rule.own_namespace]:
            documents += _permissions("Role", name, own)
    return documents + [_aggregated(name, roles, rules) for name, (roles, rules) in USERS.items()]


def _account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}


def _permissions(kind: str, name: str, rules: list[Rule]) -> list[dict[str, Any]]:
    """A Role or ClusterRole, and its binding to the ServiceAccount."""
    group, metadata = "rbac.authorization.k8s.io", {"name": name}
    if kind == "Role":
        metadata["namespace"] = NAMESPACE
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": metadata,
            "rules": [_policy(rule) for rule in rules],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        },
    ]


def _aggregated(name: str, roles: tuple[str, ...], rules: tuple[Rule, ...]) -> dict[str, Any]:
    labels = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in roles}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels},
        "rules": [_policy(rule) for rule in rules],
    }


def _policy(rule: Rule) -> dict[str, Any]:
    policy = {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": sorted(rule.verbs)}
    return policy | ({"resourceNames": list(rule.names)} if rule.names else {})
