"""What is added to pods that must run in one NVLink partition."""

import copy
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import CLIQUE_LABEL, DOMAIN_LABEL, PLACEMENT_ANNOTATION, SAME_PARTITION
from imex_dra.webhook.placement import placement_patch
from tests.controller.claims import domain

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": {DOMAIN_LABEL: "uid-job"}}}
OTHER = {"topologyKey": "zone", "labelSelector": {}}


def asking(name: str = "job") -> ComputeDomain:
    found = domain(name, template=f"{name}-channel")
    annotations = {PLACEMENT_ANNOTATION: SAME_PARTITION}
    return structs.replace(found, metadata=structs.replace(found.metadata, annotations=annotations))


def pod(affinity: Any = None, labels: Any = None, templates: tuple[str, ...] = ("job-channel",)) -> dict[str, Any]:
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    spec = {"resourceClaims": claims, **({} if affinity is None else {"affinity": affinity})}
    return {"kind": "Pod", "metadata": {} if labels is None else {"labels": labels}, "spec": spec}


def applied(obj: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    result: Any = copy.deepcopy(obj)
    for operation in patch:
        assert operation["op"] == "add"
        *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
        target = result
        for part in parents:
            target = target[part]
        target.append(operation["value"]) if last == "-" else target.__setitem__(last, operation["value"])
    found: dict[str, Any] = result
    return found


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, {"podAffinity": {REQUIRED: [TERM]}}),
        ({"nodeAffinity": {}}, {"nodeAffinity": {}, "podAffinity": {REQUIRED: [TERM]}}),
        ({"podAffinity": {"preferred": []}}, {"podAffinity": {"preferred": [], REQUIRED: [TERM]}}),
        ({"podAffinity": {REQUIRED: [OTHER]}}, {"podAffinity": {REQUIRED: [OTHER, TERM]}}),
    ],
)
@pytest.mark.parametrize("labels", [None, {"app": "x"}])
def test_affinity_is_added_to_what_the_user_wrote(affinity: Any, expected: Any, labels: Any) -> None:
    written = pod(affinity, labels)
    found = applied(written, placement_patch(written, (asking(),), by_namespace=False))
    assert found["spec"]["affinity"] == expected
    assert found["metadata"]["labels"] == {**(labels or {}), DOMAIN_LABEL: "uid-job"}


@pytest.mark.parametrize(
    ("written", "domains", "by_namespace"),
    [
        (pod(), (domain("job", template="job-channel"),), False),
        (pod(), (asking("other"),), True),
        (pod(), (), True),
        (pod({"podAffinity": {REQUIRED: [{"topologyKey": CLIQUE_LABEL}]}}), (asking(),), True),
        (pod(templates=("job-channel", "other-channel")), (asking(), asking("other")), True),
        ({"kind": "Pod", "spec": 3}, (asking(),), True),
    ],
    ids=["not asked for", "another template", "unknown", "placed by the user", "two ComputeDomains", "malformed"],
)
def test_what_is_left_alone(
    written: dict[str, Any], domains: tuple[ComputeDomain, ...], by_namespace: bool
) -> None:
    assert placement_patch(written, domains, by_namespace=by_namespace) == []


def test_a_namespace_can_ask_for_all_of_its_pods() -> None:
    assert placement_patch(pod(), (domain("job", template="job-channel"),), by_namespace=True) != []
