"""Keeps the pods of a ComputeDomain in one NVLink partition: a JSON Patch for a pod that is created. Pure.

The pods get a label with the UID of their ComputeDomain, and required affinity to pods with that label. The first
one has none to be near to; the scheduler accepts that of a pod that matches its own term.
"""

from typing import Any

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import CLIQUE_LABEL, DOMAIN_LABEL, PLACEMENT_ANNOTATION, SAME_PARTITION
from imex_dra.lint.values import Value, from_plain

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PATH = ("spec", "affinity", "podAffinity")


def placement_patch(
    pod: dict[str, Any], domains: tuple[ComputeDomain, ...], *, by_namespace: bool
) -> list[dict[str, Any]]:
    """Empty if nothing is to be added. `domains`: those of the pod's namespace. `by_namespace`: whether the
    namespace asks for it; otherwise the ComputeDomain of the pod has to.
    """
    value = from_plain(pod)
    names = _templates(value)
    claimed = [domain for domain in domains if domain.template_name in names]
    # Of several ComputeDomains, each would want its own partition.
    if len(claimed) != 1 or not (by_namespace or _asks(claimed[0])) or _is_placed(value):
        return []
    uid = claimed[0].metadata.uid
    term = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": {DOMAIN_LABEL: uid}}}
    return [*_label(value, uid), *_affinity(value, term)]


def needs_look_up(pod: dict[str, Any], domains: tuple[ComputeDomain, ...]) -> bool:
    """Whether it claims from a template of none of these ComputeDomains, and may have to be placed."""
    value = from_plain(pod)
    return not _is_placed(value) and bool(_templates(value) - {domain.template_name for domain in domains})


def _templates(pod: Value) -> set[str]:
    names = (claim["resourceClaimTemplateName"].text for claim in pod.at("spec.resourceClaims").elements())
    return {name for name in names if name}


def _asks(domain: ComputeDomain) -> bool:
    return domain.metadata.annotations.get(PLACEMENT_ANNOTATION) == SAME_PARTITION


def _is_placed(pod: Value) -> bool:
    terms = pod.at("spec.affinity.podAffinity")[_REQUIRED].elements()
    return any(term["topologyKey"].text == CLIQUE_LABEL for term in terms)


def _label(pod: Value, uid: str) -> list[dict[str, Any]]:
    if not pod.at("metadata.labels").filled:
        return [_add("/metadata/labels", {DOMAIN_LABEL: uid})]
    return [_add(f"/metadata/labels/{DOMAIN_LABEL.replace('/', '~1')}", uid)]


def _affinity(pod: Value, term: dict[str, Any]) -> list[dict[str, Any]]:
    """At the deepest level that exists: a patch cannot add below one that does not."""
    path, found, rest = "", pod, [*_PATH, _REQUIRED]
    while rest and found[rest[0]].filled:
        found, path = found[rest[0]], f"{path}/{rest.pop(0)}"
    if not rest:
        return [_add(f"{path}/-", term)]
    content: Any = [term]
    for name in reversed(rest[1:]):
        content = {name: content}
    return [_add(f"{path}/{rest[0]}", content)]


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
