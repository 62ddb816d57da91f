"""Label selectors and node selectors as objects, as they are in affinities and spread constraints."""

from collections.abc import Mapping
from typing import Any

from imex_sandbox.embedded.statuses import Json


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """A selector that is missing matches nothing; an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(requirement(one, labels) for one in selector.get("matchExpressions") or ())


def requirement(term: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(term["key"]), term.get("values") or [""]
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                number, limit = int(value or ""), int(values[0])
            except ValueError:
                return False
            return number > limit if operator == "Gt" else number < limit
    return False


def node_term(term: Json, node: Json) -> bool:
    """A term without requirements matches no node."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    own = node["metadata"].get("labels") or {}
    name = {"metadata.name": node["metadata"]["name"]}
    return all(requirement(one, own) for one in labels) and all(requirement(one, name) for one in fields)


def node_selector(selector: Json, node: Json) -> bool:
    return any(node_term(term, node) for term in selector.get("nodeSelectorTerms") or ())


def labels_of(document: Json) -> dict[str, Any]:
    return document["metadata"].get("labels") or {}
