"""A pod's volumes as directories on its node: empty ones, and files of config maps, secrets, tokens, the pod."""

import shutil
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotFound, NotYet
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.environment import field
from imex_dra.sandbox.kubelet.views import (
    CONFIG_MAPS,
    SECRETS,
    ConfigMapVolume,
    FileItem,
    Pod,
    ProjectedSource,
    SecretSource,
    Volume,
)

Files = dict[str, bytes]


class Volumes:
    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.server = client.server
        """Where pods find the API server: on this machine, since no service address leads anywhere."""

    async def set_up(self, pod: Pod, directory: Path, addresses: Mapping[str, str]) -> None:
        """Raises NotYet, in the real kubelet's words, while something that is referred to does not exist."""
        used = {mount.name for container in pod.spec.every_container for mount in container.volume_mounts}
        for volume in (volume for volume in pod.spec.volumes if volume.name in used):
            place = path(directory, volume.name)
            if place.exists():
                continue
            files = await self._files(pod, volume, addresses)
            place.mkdir(parents=True)
            for name, content in files.items():
                target = place / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)

    async def config_map(self, namespace: str, name: str) -> Files:
        found = await self._client.get(CONFIG_MAPS, Key(namespace, name))
        return {key: value.encode() for key, value in found.data.items()} | found.binary_data

    async def secret(self, namespace: str, name: str) -> Files:
        return dict((await self._client.get(SECRETS, Key(namespace, name))).data)

    async def _files(self, pod: Pod, volume: Volume, addresses: Mapping[str, str]) -> Files:
        files: Files = {}
        for part in volume.parts:
            try:
                files |= await self._part(pod, part, addresses)
            except _Missing as error:
                raise NotYet(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error
        return files

    async def _part(self, pod: Pod, part: ProjectedSource, addresses: Mapping[str, str]) -> Files:
        namespace = pod.metadata.namespace
        if (token := part.service_account_token) is not None:
            issued = await self._client.token(pod, token.audience, token.expiration_seconds)
            return {token.path: issued.encode()}
        if (config := part.config_map) is not None:
            return await self._chosen("configmap", config, self.config_map(namespace, config.name))
        if (secret := part.secret) is not None:
            return await self._chosen("secret", secret, self.secret(namespace, secret.name))
        if (downward := part.downward_api) is not None:
            fields = {item.path: item.field_ref.field_path for item in downward.items if item.field_ref}
            return {name: field(pod, where, addresses).encode() for name, where in fields.items()}
        return {}

    async def _chosen(self, kind: str, source: ConfigMapVolume | SecretSource, content: Awaitable[Files]) -> Files:
        try:
            return chosen(await content, source.items)
        except NotFound as error:
            if source.optional:
                return {}
            raise _Missing(f'{kind} "{source.name}" not found') from error


class _Missing(NotYet):
    pass


def chosen(files: Files, items: Iterable[FileItem]) -> Files:
    """Those that are listed, under the names that are given; all, if none is."""
    listed = list(items)
    return {item.path: files[item.key] for item in listed if item.key in files} if listed else files


def path(directory: Path, volume: str) -> Path:
    return directory / "volumes" / volume


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
