"""What a container's variables take from config maps and secrets."""

from collections.abc import Iterable

from imex_dra.base.errors import NotFound
from imex_dra.sandbox.kubelet.environment import ConfigError, Lookup
from imex_dra.sandbox.kubelet.views.container import Container, EnvFrom, EnvVar
from imex_dra.sandbox.kubelet.views.pod import Pod
from imex_dra.sandbox.kubelet.volumes import Volumes


class References:
    def __init__(self, files: Volumes) -> None:
        self._files = files

    async def lookup(self, pod: Pod, container: Container) -> Lookup:
        """All keys of the objects that single variables name."""
        result: dict[tuple[str, str, str], str] = {}
        for kind, name, optional in dict.fromkeys(_sources(container.env)):
            values = await self._values(pod, kind, name, optional=optional)
            result |= {(kind, name, key): value for key, value in values.items()}
        return result

    async def taken_whole(self, pod: Pod, container: Container) -> dict[str, str]:
        """Variables that are named by the keys of an object."""
        result: dict[str, str] = {}
        for source in container.env_from:
            kind, name, optional = _whole(source)
            values = await self._values(pod, kind, name, optional=optional)
            result |= {f"{source.prefix}{key}": value for key, value in values.items()}
        return result

    async def _values(self, pod: Pod, kind: str, name: str, *, optional: bool) -> dict[str, str]:
        fetch = self._files.config_map if kind == "configmap" else self._files.secret
        try:
            found = await fetch(pod.metadata.namespace, name)
        except NotFound as error:
            if optional:
                return {}
            raise ConfigError(f'{kind} "{name}" not found') from error
        return {key: value.decode(errors="replace") for key, value in found.items()}


def _whole(source: EnvFrom) -> tuple[str, str, bool]:
    if (config := source.config_map_ref) is not None:
        return "configmap", config.name, config.optional
    assert source.secret_ref is not None
    return "secret", source.secret_ref.name, source.secret_ref.optional


def _sources(variables: Iterable[EnvVar]) -> Iterable[tuple[str, str, bool]]:
    for source in (variable.value_from for variable in variables if variable.value_from):
        if (key := source.config_map_key_ref) is not None:
            yield "configmap", key.name, key.optional
        if (key := source.secret_key_ref) is not None:
            yield "secret", key.name, key.optional
