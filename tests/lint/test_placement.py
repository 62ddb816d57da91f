"""Where pods may run, as far as a manifest says it."""

from typing import Any

import pytest

from imex_dra.lint.manifests import Manifests
from imex_dra.lint.placement import apart, held_together, needs_nodes, selects
from imex_dra.lint.pods import Object, Pods
from imex_dra.lint.values import from_plain

CLIQUE = "nvidia.com/gpu.clique"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pods(
    spec: dict[str, Any], replicas: int = 1, gpus: int = 0, annotations: dict[str, str] | None = None
) -> Pods:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], **spec}}
    metadata = {"name": "x", "annotations": annotations or {}}
    value = {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas, "template": template}}
    (only,) = Manifests((Object("f", from_plain(value)),)).pods
    return only


def term(key: str, **labels: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}


def nodes(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": list(expressions)}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def alternatives(*values: str, key: str = CLIQUE) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for value in values]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def affinity(kind: str, when: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {when: list(terms)}}}


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        ({}, False),
        (affinity("podAffinity", REQUIRED, term("topology.kubernetes.io/zone"), term(CLIQUE)), True),
        (affinity("podAffinity", REQUIRED, term("ds.coreweave.com/nvlink.domain")), True),
        (affinity("podAffinity", REQUIRED, term("topology.kubernetes.io/zone")), False),
        (affinity("podAffinity", PREFERRED, {"weight": 1, "podAffinityTerm": term(CLIQUE)}), False),
        (affinity("podAntiAffinity", REQUIRED, term(CLIQUE)), False),
        ({"nodeSelector": {CLIQUE: "a.1"}}, True),
        ({"nodeSelector": {"node.coreweave.cloud/type": "gb200-4x"}}, False),
        ({"nodeName": "n1"}, True),
        (nodes({"key": CLIQUE, "operator": "In", "values": ["a.1"]}), True),
        (nodes({"key": CLIQUE, "operator": "In", "values": ["a.1", "b.1"]}), False),
        (nodes({"key": CLIQUE, "operator": "Exists"}), False),
        (alternatives("a.1", "b.1"), False),
        (alternatives("a.1", "a.1"), True),
        (alternatives("n1", "n2", key="kubernetes.io/hostname"), False),
        ({"nodeSelector": {CLIQUE: "a.1"}} | alternatives("a.1", "b.1"), True),
        (nodes({"key": CLIQUE, "operator": "NotIn", "values": ["a.1"]}), False),
    ],
)
def test_what_keeps_pods_in_one_partition(spec: dict[str, Any], held: bool) -> None:
    assert held_together(pods(spec)) is held


@pytest.mark.parametrize(
    ("name", "key", "held"),
    [
        ("kueue.x-k8s.io/podset-required-topology", CLIQUE, True),
        ("kueue.x-k8s.io/podset-required-topology", "kubernetes.io/hostname", False),
        ("kueue.x-k8s.io/podset-preferred-topology", CLIQUE, False),
        ("alpha.jobset.sigs.k8s.io/exclusive-topology", CLIQUE, True),
    ],
)
def test_annotations_of_other_schedulers_count(name: str, key: str, held: bool) -> None:
    assert held_together(pods({}, annotations={name: key})) is held


def test_pods_are_apart_if_they_exclude_each_other_from_a_node() -> None:
    assert apart(pods(affinity("podAntiAffinity", REQUIRED, term("kubernetes.io/hostname", app="x"))))
    assert not apart(pods(affinity("podAntiAffinity", REQUIRED, term("kubernetes.io/hostname", app="y"))))
    assert not apart(pods(affinity("podAffinity", REQUIRED, term("kubernetes.io/hostname", app="x"))))


@pytest.mark.parametrize(
    ("replicas", "gpus", "expected"),
    [
        (18, 4, 18),
        (18, 3, 18),
        (18, 2, 9),
        (17, 2, 9),
        (72, 1, 18),
        (73, 1, 19),
        (2, 8, 2),
        (5, 0, None),
        (0, 4, 0),
    ],
)
def test_the_number_of_nodes_follows_from_the_gpus(replicas: int, gpus: int, expected: int | None) -> None:
    assert needs_nodes(pods({}, replicas, gpus)) == expected


def test_pods_that_are_apart_need_a_node_each() -> None:
    spec = affinity("podAntiAffinity", REQUIRED, term("kubernetes.io/hostname", app="x"))
    assert needs_nodes(pods(spec, 20)) == 20


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "y"}}, False),
        ({"matchLabels": {"job-name": "x"}}, True),
        ({"matchLabels": {"app": "x", "other": "z"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["y"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "other", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "ray.io/group", "operator": "In", "values": ["a"]}]}, True),
    ],
)
def test_which_pods_a_term_selects(selector: dict[str, Any] | None, selected: bool) -> None:
    assert selects(from_plain({"labelSelector": selector}), {"app": "x"}) is selected
