"""A pod's volumes as directories on its node: empty ones, and files of config maps, secrets, tokens, the pod."""

import shutil
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import NamedTuple

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotFound, NotYet
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.environment import field
from imex_dra.sandbox.kubelet.views.configuration import CONFIG_MAPS, SECRETS
from imex_dra.sandbox.kubelet.views.pod import Pod
from imex_dra.sandbox.kubelet.views.volume import ConfigMapVolume, ProjectedSource, SecretSource, Volume

Files = dict[str, bytes]

_KNOWN = "emptyDir, configMap, secret, downwardAPI and projected"


class File(NamedTuple):
    content: bytes
    mode: int


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
            place.chmod(0o777)
            for name, file in files.items():
                target = place / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.content)
                target.chmod(file.mode)

    async def config_map(self, namespace: str, name: str) -> Files:
        found = await self._client.get(CONFIG_MAPS, Key(namespace, name))
        return {key: value.encode() for key, value in found.data.items()} | found.binary_data

    async def secret(self, namespace: str, name: str) -> Files:
        return dict((await self._client.get(SECRETS, Key(namespace, name))).data)

    async def _files(self, pod: Pod, volume: Volume, addresses: Mapping[str, str]) -> dict[str, File]:
        files: dict[str, File] = {}
        try:
            if not volume.is_known:
                raise _Missing(f"simulated nodes have {_KNOWN} volumes only")
            for part in volume.parts:
                files |= await self._part(pod, part, addresses, volume.default_mode)
        except _Missing as error:
            raise NotYet(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error
        return files

    async def _part(
        self, pod: Pod, part: ProjectedSource, addresses: Mapping[str, str], mode: int
    ) -> dict[str, File]:
        namespace = pod.metadata.namespace
        if (token := part.service_account_token) is not None:
            issued = await self._client.token(pod, token.audience, token.expiration_seconds)
            return {token.path: File(issued.encode(), mode)}
        if (config := part.config_map) is not None:
            return await self._chosen("config", config, self.config_map(namespace, config.name), mode)
        if (secret := part.secret) is not None:
            return await self._chosen("secret", secret, self.secret(namespace, secret.name), mode)
        if (downward := part.downward_api) is not None:
            fields = [(item, item.field_ref.field_path) for item in downward.items if item.field_ref]
            return {i.path: File(field(pod, where, addresses).encode(), i.mode or mode) for i, where in fields}
        return {}

    async def _chosen(
        self, kind: str, source: ConfigMapVolume | SecretSource, content: Awaitable[Files], mode: int
    ) -> dict[str, File]:
        try:
            return chosen(kind, await content, source, mode)
        except NotFound as error:
            if source.optional:
                return {}
            what = "configmap" if kind == "config" else kind
            raise _Missing(f'{what} "{source.name}" not found') from error


class _Missing(NotYet):
    pass


def chosen(kind: str, files: Files, source: ConfigMapVolume | SecretSource, mode: int) -> dict[str, File]:
    """Those that are listed, under the names and modes that are given; all, if none is."""
    if not source.items:
        return {name: File(content, mode) for name, content in files.items()}
    if (missing := [i.key for i in source.items if i.key not in files]) and not source.optional:
        raise _Missing(f"references non-existent {kind} key: {missing[0]}")
    return {i.path: File(files[i.key], i.mode or mode) for i in source.items if i.key in files}


def path(directory: Path, volume: str) -> Path:
    return directory / "volumes" / volume


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
