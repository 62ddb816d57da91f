"""The environment variables of a container, with references to ConfigMaps, Secrets, pod fields and each other."""

import re
from collections.abc import Iterable, Mapping

from imex_dra.base.errors import NotFound, NotYet
from imex_sandbox.kubelet.client import NodeClient
from imex_sandbox.kubelet.views.pod import Container, EnvFromSource, EnvVar, Pod
from imex_sandbox.kubelet.views.volume import KeySelector

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

KeyValues = Mapping[tuple[str, str, str], str]
"""Values of ConfigMaps and Secrets by kind, object name and key."""


class ConfigError(NotYet):
    """An object or key that a variable refers to does not exist."""


async def container_environment(
    client: NodeClient, pod: Pod, container: Container, addresses: Mapping[str, str]
) -> dict[str, str]:
    values = await _fetch_key_values(client, pod, container)
    env_from = await _fetch_env_from(client, pod, container)
    return resolve_environment(pod, container, addresses, values, env_from)


def resolve_environment(
    pod: Pod,
    container: Container,
    addresses: Mapping[str, str],
    values: KeyValues,
    env_from: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """In the order of the spec: a variable can refer to earlier ones, and to those from `envFrom`."""
    result: dict[str, str] = dict(env_from or {})
    for variable in container.env:
        value = _value(pod, variable, addresses, values)
        if value is not None:
            result[variable.name] = expand(value, result) if variable.value_from is None else value
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by its value and `$$` by a dollar sign; unknown references stay as they are."""

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def pod_field(pod: Pod, path: str, addresses: Mapping[str, str]) -> str:
    """`addresses` holds the values of `status.hostIP` and `status.podIP`."""
    meta = pod.metadata
    if subscript := _SUBSCRIPT.fullmatch(path):
        return (meta.labels if subscript[1] == "labels" else meta.annotations).get(subscript[2], "")
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _format_map(meta.labels),
        "metadata.annotations": _format_map(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **addresses,
    }
    return fields.get(path, "")


def _value(pod: Pod, variable: EnvVar, addresses: Mapping[str, str], values: KeyValues) -> str | None:
    source = variable.value_from
    if source is None:
        return variable.value
    if source.field_ref is not None:
        return pod_field(pod, source.field_ref.field_path, addresses)
    if (key := source.config_map_key_ref) is not None:
        return _key_value(pod, "ConfigMap", key, values)
    if (key := source.secret_key_ref) is not None:
        return _key_value(pod, "Secret", key, values)
    return None


def _key_value(pod: Pod, kind: str, selector: KeySelector, values: KeyValues) -> str | None:
    value = values.get((kind.lower(), selector.name, selector.key))
    if value is None and not selector.optional:
        raise ConfigError(f"couldn't find key {selector.key} in {kind} {pod.metadata.namespace}/{selector.name}")
    return value


def _format_map(entries: Mapping[str, str]) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted(entries.items()))


async def _fetch_key_values(client: NodeClient, pod: Pod, container: Container) -> KeyValues:
    result: dict[tuple[str, str, str], str] = {}
    for kind, name, optional in dict.fromkeys(_key_references(container.env)):
        data = await _fetch(client, pod, kind, name, optional=optional)
        result |= {(kind, name, key): value for key, value in data.items()}
    return result


async def _fetch_env_from(client: NodeClient, pod: Pod, container: Container) -> dict[str, str]:
    result: dict[str, str] = {}
    for source in container.env_from:
        kind, name, optional = _object_reference(source)
        data = await _fetch(client, pod, kind, name, optional=optional)
        result |= {f"{source.prefix}{key}": value for key, value in data.items()}
    return result


async def _fetch(client: NodeClient, pod: Pod, kind: str, name: str, *, optional: bool) -> dict[str, str]:
    fetch = client.config_map if kind == "configmap" else client.secret
    try:
        data = await fetch(pod.metadata.namespace, name)
    except NotFound as error:
        if optional:
            return {}
        raise ConfigError(f'{kind} "{name}" not found') from error
    return {key: value.decode(errors="replace") for key, value in data.items()}


def _key_references(variables: Iterable[EnvVar]) -> Iterable[tuple[str, str, bool]]:
    for source in (variable.value_from for variable in variables if variable.value_from):
        if (key := source.config_map_key_ref) is not None:
            yield "configmap", key.name, key.optional
        if (key := source.secret_key_ref) is not None:
            yield "secret", key.name, key.optional


def _object_reference(source: EnvFromSource) -> tuple[str, str, bool]:
    if (config_map := source.config_map_ref) is not None:
        return "configmap", config_map.name, config_map.optional
    assert source.secret_ref is not None
    return "secret", source.secret_ref.name, source.secret_ref.optional
