"""Environment variables refer to each other, to pod fields, and to keys of ConfigMaps and Secrets."""

import pytest

from imex_sandbox.kubelet.environment import ConfigError, expand, pod_field, resolve_environment
from imex_sandbox.kubelet.views.pod import Container, EnvVar, EnvVarSource, Pod, PodMeta, PodSpec
from imex_sandbox.kubelet.views.volume import KeySelector

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
def test_references_are_expanded_by_the_rules_of_kubernetes(text: str, result: str) -> None:
    assert expand(text, {"A": "1"}) == result


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
def test_field_references_select_fields_of_the_pod(path: str, value: str) -> None:
    assert pod_field(POD, path, ADDRESSES) == value


def test_a_variable_can_refer_only_to_earlier_ones() -> None:
    container = Container("c", env=(EnvVar("A", "$(B)"), EnvVar("B", "2"), EnvVar("C", "$(A)$(B)")))
    assert resolve_environment(POD, container, ADDRESSES, {}) == {"A": "$(B)", "B": "2", "C": "$(B)2"}


def test_a_variable_with_a_missing_optional_key_is_not_set() -> None:
    existing = EnvVarSource(config_map_key_ref=KeySelector("config", "key"))
    missing = EnvVarSource(secret_key_ref=KeySelector("secret", "key", optional=True))
    container = Container("c", env=(EnvVar("A", value_from=existing), EnvVar("B", value_from=missing)))
    values = {("configmap", "config", "key"): "$(A)"}
    assert resolve_environment(POD, container, ADDRESSES, values) == {"A": "$(A)"}


def test_a_missing_required_key_is_an_error_that_names_it() -> None:
    missing = EnvVarSource(secret_key_ref=KeySelector("secret", "key"))
    container = Container("c", env=(EnvVar("B", value_from=missing),))
    with pytest.raises(ConfigError, match=r"^couldn't find key key in Secret ns/secret$"):
        resolve_environment(POD, container, ADDRESSES, {})


def test_env_overrides_and_can_refer_to_env_from() -> None:
    container = Container("c", env=(EnvVar("A", "own"), EnvVar("C", "$(A)$(B)")))
    environment = resolve_environment(POD, container, ADDRESSES, {}, {"A": "from", "B": "2"})
    assert environment == {"A": "own", "B": "2", "C": "own2"}
