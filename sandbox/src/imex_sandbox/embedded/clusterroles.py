"""The ClusterRoles view, edit and admin, and the aggregation of ClusterRoles.

They have the rules of a real API server for the kinds that this one serves. As there, another ClusterRole can add
to them with a label, such as those of the driver for its users.
"""

from imex_sandbox.embedded.kinds import CLUSTER_ROLES
from imex_sandbox.embedded.labels import labels_of, matches
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import Json

_MANAGER = "embedded-controllers"
_LABEL = "rbac.authorization.k8s.io/aggregate-to-"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]


def _rule(verbs: list[str], groups: str, resources: str) -> Json:
    return {"verbs": verbs, "apiGroups": groups.split(","), "resources": resources.split()}


_RULES = {
    "view": [
        _rule(_READ, "", "configmaps pods serviceaccounts services services/status"),
        _rule(_READ, "", "namespaces namespaces/status pods/log pods/status"),
        _rule(_READ, ",events.k8s.io", "events"),
        _rule(
            _READ, "apps", "daemonsets daemonsets/status deployments replicasets statefulsets statefulsets/status"
        ),
        _rule(_READ, "batch", "jobs jobs/status"),
        _rule(_READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
    ],
    "edit": [
        _rule(_READ, "", "pods/exec secrets"),
        _rule(_WRITE, "", "pods pods/exec configmaps secrets serviceaccounts services"),
        _rule(["create"], "", "serviceaccounts/token"),
        _rule(_WRITE, ",events.k8s.io", "events"),
        _rule(_WRITE, "apps", "daemonsets deployments replicasets statefulsets"),
        _rule(_WRITE, "batch", "jobs"),
        _rule([*_READ, *_WRITE], "coordination.k8s.io", "leases"),
        _rule(_WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
    ],
    "admin": [_rule([*_READ, *_WRITE], "rbac.authorization.k8s.io", "rolebindings roles")],
}
_INCLUDED_IN = {"view": "edit", "edit": "admin"}


def install(objects: Objects) -> None:
    for name, rules in _RULES.items():
        labels = {f"{_LABEL}{_INCLUDED_IN[name]}": "true"} if name in _INCLUDED_IN else {}
        selector = {"matchLabels": {f"{_LABEL}{name}": "true"}}
        aggregated = {"aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
        for role, own, rest in (
            (f"system:aggregate-to-{name}", {f"{_LABEL}{name}": "true"}, {"rules": rules}),
            (name, labels, aggregated),
        ):
            own = {"kubernetes.io/bootstrapping": "rbac-defaults", **own}
            objects.create(CLUSTER_ROLES, "", {"metadata": {"name": role, "labels": own}, **rest}, _MANAGER)


def aggregate(objects: Objects) -> None:
    """A role that another one includes changes that one in the next pass."""
    roles = [(key, one.document) for key, one in objects.storage.all(CLUSTER_ROLES)]
    for key, role in roles:
        selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
        if selectors is None:
            continue
        rules: list[Json] = []
        for other_key, other in roles:
            if other_key != key and any(matches(one, labels_of(other)) for one in selectors):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
        if rules != (role.get("rules") or []):
            objects.patch(CLUSTER_ROLES, key, {"rules": rules}, manager=_MANAGER)
