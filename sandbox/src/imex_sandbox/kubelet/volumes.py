"""Volumes of a pod as directories on the node: emptyDir, configMap, secret, downwardAPI and projected."""

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import NotFound, NotYet
from imex_sandbox.kubelet.client import NodeClient
from imex_sandbox.kubelet.environment import pod_field
from imex_sandbox.kubelet.views.pod import Pod
from imex_sandbox.kubelet.views.volume import ConfigMapVolumeSource, SecretProjection, Volume, VolumeProjection

_SUPPORTED = "emptyDir, configMap, secret, downwardAPI and projected"


class File(NamedTuple):
    content: bytes
    mode: int


class _MountError(NotYet):
    pass


class Volumes:
    def __init__(self, client: NodeClient) -> None:
        self._client = client

    async def set_up(self, pod: Pod, directory: Path, addresses: Mapping[str, str]) -> None:
        """Raises NotYet, with the message of the real kubelet, while a referenced object does not exist."""
        mounted = {mount.name for container in pod.spec.all_containers for mount in container.volume_mounts}
        for volume in (volume for volume in pod.spec.volumes if volume.name in mounted):
            path = volume_path(directory, volume.name)
            if path.exists():
                continue
            files = await self._files(pod, volume, addresses)
            path.mkdir(parents=True)
            path.chmod(0o777)
            for name, file in files.items():
                target = path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.content)
                target.chmod(file.mode)

    async def _files(self, pod: Pod, volume: Volume, addresses: Mapping[str, str]) -> dict[str, File]:
        files: dict[str, File] = {}
        try:
            if not volume.is_supported:
                raise _MountError(f"simulated nodes support {_SUPPORTED} volumes only")
            for projection in volume.projections:
                files |= await self._project(pod, projection, addresses, volume.default_mode)
        except _MountError as error:
            raise NotYet(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error
        return files

    async def _project(
        self, pod: Pod, projection: VolumeProjection, addresses: Mapping[str, str], mode: int
    ) -> dict[str, File]:
        namespace = pod.metadata.namespace
        if (token := projection.service_account_token) is not None:
            issued = await self._client.service_account_token(pod, token.audience, token.expiration_seconds)
            return {token.path: File(issued.encode(), mode)}
        if (config_map := projection.config_map) is not None:
            data = self._client.config_map(namespace, config_map.name)
            return await _selected("config", config_map, data, mode)
        if (secret := projection.secret) is not None:
            return await _selected("secret", secret, self._client.secret(namespace, secret.name), mode)
        if (downward := projection.downward_api) is not None:
            return {
                item.path: File(pod_field(pod, item.field_ref.field_path, addresses).encode(), item.mode or mode)
                for item in downward.items
                if item.field_ref
            }
        return {}


async def _selected(
    kind: str, source: ConfigMapVolumeSource | SecretProjection, data: Awaitable[dict[str, bytes]], mode: int
) -> dict[str, File]:
    try:
        return select_items(kind, await data, source, mode)
    except NotFound as error:
        if source.optional:
            return {}
        what = "configmap" if kind == "config" else kind
        raise _MountError(f'{what} "{source.name}" not found') from error


def select_items(
    kind: str, data: dict[str, bytes], source: ConfigMapVolumeSource | SecretProjection, mode: int
) -> dict[str, File]:
    """The listed items with their paths and modes; every key if no items are listed."""
    if not source.items:
        return {name: File(content, mode) for name, content in data.items()}
    missing = [item.key for item in source.items if item.key not in data]
    if missing and not source.optional:
        raise _MountError(f"references non-existent {kind} key: {missing[0]}")
    return {item.path: File(data[item.key], item.mode or mode) for item in source.items if item.key in data}


def volume_path(directory: Path, volume: str) -> Path:
    return directory / "volumes" / volume
