"""RBAC manifests from the permissions table, for the two programs that talk to the API server."""

from typing import Any

from imex_dra.api.names import NAMESPACE
from imex_dra.api.permissions import CONTROLLER, NODE, Rule

ACCOUNTS: dict[str, tuple[Rule, ...]] = {"imex-controller": CONTROLLER, "imex-node": NODE}


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
