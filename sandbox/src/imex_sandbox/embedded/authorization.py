"""Who may do what: RBAC, by the roles and bindings in the storage.

Nodes have the permissions that the node authorizer of a real API server grants, but for all nodes and pods, not
only their own.
"""

from collections.abc import Iterator
from typing import NamedTuple

from imex_sandbox.embedded.authentication import AUTHENTICATED, User
from imex_sandbox.embedded.kinds import BUILT_IN, Kind
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Change, Key, Storage

_RBAC = {kind.plural: kind for kind in BUILT_IN if kind.group == "rbac.authorization.k8s.io"}
_PUBLIC_PATHS = ("/healthz", "/livez", "/readyz", "/version")
_DISCOVERY_PATHS = ("/api", "/apis", "/openapi")
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")


class Attributes(NamedTuple):
    verb: str
    group: str
    resource: str
    """With its subresource: `pods/status`."""
    namespace: str
    name: str


def _node_rules() -> list[Json]:
    def rule(verbs: tuple[str, ...], group: str, *resources: str) -> Json:
        return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}

    return [
        rule(_READ, "", "nodes", "pods", "services", "configmaps", "secrets", "serviceaccounts"),
        rule(_WRITE, "", "nodes", "nodes/status", "pods", "pods/status", "events", "serviceaccounts/token"),
        rule((*_READ, *_WRITE), "coordination.k8s.io", "leases"),
        rule(_WRITE, "events.k8s.io", "events"),
        rule((*_READ, *_WRITE), "resource.k8s.io", "resourceslices"),
        rule(_READ, "resource.k8s.io", "resourceclaims"),
    ]


_NODES = _node_rules()


class Authorizer:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._rules: dict[User, list[tuple[str, Json]]] = {}
        """With the namespace that a rule holds in; empty for all."""
        storage.subscribe(self._on_change)

    def check(self, user: User, attributes: Attributes) -> None:
        """Raises 403."""
        if "system:masters" in user.groups:
            return
        for namespace, rule in self._rules_of(user):
            if namespace in ("", attributes.namespace) and _allows(rule, attributes):
                return
        raise _forbidden(user, attributes)

    def check_path(self, user: User, path: str) -> None:
        public = path.startswith(_PUBLIC_PATHS)
        if not public and not (AUTHENTICATED in user.groups and path.startswith(_DISCOVERY_PATHS)):
            raise ApiError(403, f'forbidden: User "{user.name}" cannot get path "{path}"')

    def _on_change(self, change: Change) -> None:
        if change.kind.group == "rbac.authorization.k8s.io":
            self._rules.clear()

    def _rules_of(self, user: User) -> list[tuple[str, Json]]:
        if user not in self._rules:
            self._rules[user] = list(self._find(user))
        return self._rules[user]

    def _find(self, user: User) -> Iterator[tuple[str, Json]]:
        if "system:nodes" in user.groups:
            yield from (("", rule) for rule in _NODES)
        for plural in ("clusterrolebindings", "rolebindings"):
            for key, one in self._storage.all(_RBAC[plural]):
                if any(_names(subject, user, key.namespace) for subject in one.document.get("subjects") or ()):
                    for rule in self._role(one.document["roleRef"], key.namespace):
                        yield key.namespace, rule

    def _role(self, reference: Json, namespace: str) -> list[Json]:
        kind: Kind = _RBAC["roles" if reference["kind"] == "Role" else "clusterroles"]
        key = Key(namespace if kind.namespaced else "", reference["name"])
        found = self._storage.get(kind, key)
        return (found.document.get("rules") or []) if found else []


def _names(subject: Json, user: User, namespace: str) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == user.name)
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            where = subject.get("namespace") or namespace
            return user.name == f"system:serviceaccount:{where}:{subject['name']}"
    return False


def _allows(rule: Json, wanted: Attributes) -> bool:
    def has(field: str, value: str) -> bool:
        values = rule.get(field) or ()
        return value in values or "*" in values

    part = wanted.resource.partition("/")[2]
    resource = has("resources", wanted.resource) or (bool(part) and f"*/{part}" in (rule.get("resources") or ()))
    names = rule.get("resourceNames")
    named = not names or wanted.name in names
    return has("verbs", wanted.verb) and has("apiGroups", wanted.group) and resource and named


def _forbidden(user: User, wanted: Attributes) -> ApiError:
    plural = wanted.resource.partition("/")[0]
    qualified = f"{plural}.{wanted.group}" if wanted.group else plural
    subject = f'{qualified} "{wanted.name}" is forbidden' if wanted.name else f"{qualified} is forbidden"
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    cause = f'cannot {wanted.verb} resource "{wanted.resource}" in API group "{wanted.group}" {where}'
    message = f'{subject}: User "{user.name}" {cause}'
    return ApiError(403, message, name=wanted.name, group=wanted.group, kind=plural)
