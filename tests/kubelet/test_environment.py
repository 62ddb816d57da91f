"""Variables of a container: references to each other, to the pod and to objects beside it."""

import pytest

from imex_dra.sandbox.kubelet.environment import ConfigError, environment, expanded, field
from imex_dra.sandbox.kubelet.views.configuration import KeyReference
from imex_dra.sandbox.kubelet.views.container import Container, EnvSource, EnvVar
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta, PodSpec

POD = Pod(
    PodMeta(name="p", namespace="ns", uid="u", labels={"app": "x"}, annotations={"k": "v", "a": "b"}),
    PodSpec(node_name="n0", service_account_name="sa"),
)
ADDRESSES = {"status.hostIP": "127.0.0.9", "status.podIP": "10.1.1.1"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$(MISSING)", "$(MISSING)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A)$(A)", "11"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, result: str) -> None:
    assert expanded(text, {"A": "1"}) == result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations", 'a="b"\nk="v"'),
        ("spec.nodeName", "n0"),
        ("status.podIP", "10.1.1.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert field(POD, path, ADDRESSES) == value


def test_a_variable_sees_those_before_it_only() -> None:
    container = Container("c", env=(EnvVar("A", "$(B)"), EnvVar("B", "2"), EnvVar("C", "$(A)$(B)")))
    assert environment(POD, container, ADDRESSES, {}) == {"A": "$(B)", "B": "2", "C": "$(B)2"}


def test_keys_of_objects_and_those_that_are_missing() -> None:
    there = EnvSource(config_map_key_ref=KeyReference("config", "key"))
    missing = EnvSource(secret_key_ref=KeyReference("secret", "key", optional=True))
    container = Container("c", env=(EnvVar("A", value_from=there), EnvVar("B", value_from=missing)))
    assert environment(POD, container, ADDRESSES, {("configmap", "config", "key"): "$(A)"}) == {"A": "$(A)"}


def test_a_key_that_must_be_there_is_named() -> None:
    missing = EnvSource(secret_key_ref=KeyReference("secret", "key"))
    container = Container("c", env=(EnvVar("B", value_from=missing),))
    with pytest.raises(ConfigError, match=r"^couldn't find key key in Secret ns/secret$"):
        environment(POD, container, ADDRESSES, {})


def test_variables_of_whole_objects_come_first() -> None:
    container = Container("c", env=(EnvVar("A", "own"), EnvVar("C", "$(A)$(B)")))
    assert environment(POD, container, ADDRESSES, {}, {"A": "whole", "B": "2"}) == {
        "A": "own",
        "B": "2",
        "C": "own2",
    }
