"""A container's environment and command line, with references to each other and to the pod expanded."""

import re
from collections.abc import Mapping

from imex_dra.base.errors import NotYet
from imex_dra.sandbox.kubelet.views.configuration import KeyReference
from imex_dra.sandbox.kubelet.views.container import Container, EnvVar
from imex_dra.sandbox.kubelet.views.pod import Pod

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

Lookup = Mapping[tuple[str, str, str], str]
"""Values of config maps and secrets by kind, name and key."""


class ConfigError(NotYet):
    """Something that a container's variables refer to is missing."""


def environment(
    pod: Pod,
    container: Container,
    addresses: Mapping[str, str],
    lookup: Lookup,
    whole: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """In the order given: a variable can refer to those before it, and to those taken as a whole."""
    result: dict[str, str] = dict(whole or {})
    for variable in container.env:
        value = _value(pod, variable, addresses, lookup)
        if value is not None:
            result[variable.name] = expanded(value, result) if variable.value_from is None else value
    return result


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` a dollar; what is unknown stays as it is."""

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def field(pod: Pod, path: str, addresses: Mapping[str, str]) -> str:
    meta = pod.metadata
    if subscript := _SUBSCRIPT.fullmatch(path):
        return (meta.labels if subscript[1] == "labels" else meta.annotations).get(subscript[2], "")
    known = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _listing(meta.labels),
        "metadata.annotations": _listing(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **addresses,
    }
    return known.get(path, "")


def _value(pod: Pod, variable: EnvVar, addresses: Mapping[str, str], lookup: Lookup) -> str | None:
    source = variable.value_from
    if source is None:
        return variable.value
    if source.field_ref is not None:
        return field(pod, source.field_ref.field_path, addresses)
    if (key := source.config_map_key_ref) is not None:
        return _looked_up(pod, "ConfigMap", key, lookup)
    if (key := source.secret_key_ref) is not None:
        return _looked_up(pod, "Secret", key, lookup)
    return None


def _looked_up(pod: Pod, kind: str, key: KeyReference, lookup: Lookup) -> str | None:
    value = lookup.get((kind.lower(), key.name, key.key))
    if value is None and not key.optional:
        raise ConfigError(f"couldn't find key {key.key} in {kind} {pod.metadata.namespace}/{key.name}")
    return value


def _listing(words: Mapping[str, str]) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted(words.items()))
