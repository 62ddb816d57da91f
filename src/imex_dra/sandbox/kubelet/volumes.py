"""A pod's volumes as directories on its node: empty ones, and files of config maps, secrets and the pod itself."""

import shutil
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotFound, NotYet
from imex_dra.kube.client import Client
from imex_dra.sandbox.kubelet.environment import field
from imex_dra.sandbox.kubelet.views import (
    CONFIG_MAPS,
    SECRETS,
    ConfigMapVolume,
    FileItem,
    Pod,
    SecretVolume,
    Volume,
)

Files = dict[str, bytes]


class Volumes:
    def __init__(self, client: Client) -> None:
        self._client = client

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
        namespace = pod.metadata.namespace
        if (source := volume.config_map) is not None:
            return await self._chosen(volume, source, self.config_map(namespace, source.name), "configmap")
        if (secret := volume.secret) is not None:
            return await self._chosen(volume, secret, self.secret(namespace, secret.secret_name), "secret")
        if (downward := volume.downward_api) is not None:
            fields = {item.path: item.field_ref.field_path for item in downward.items if item.field_ref}
            return {name: field(pod, where, addresses).encode() for name, where in fields.items()}
        return {}

    async def _chosen(
        self, volume: Volume, source: ConfigMapVolume | SecretVolume, content: Awaitable[Files], kind: str
    ) -> Files:
        try:
            return chosen(await content, source.items)
        except NotFound as error:
            if source.optional:
                return {}
            name = source.name if isinstance(source, ConfigMapVolume) else source.secret_name
            words = f'MountVolume.SetUp failed for volume "{volume.name}" : {kind} "{name}" not found'
            raise NotYet(words) from error


def chosen(files: Files, items: Iterable[FileItem]) -> Files:
    """Those that are listed, under the names that are given; all, if none is."""
    listed = list(items)
    return {item.path: files[item.key] for item in listed if item.key in files} if listed else files


def path(directory: Path, volume: str) -> Path:
    return directory / "volumes" / volume


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
