"""Starts containers: resolves everything that a spec refers to into a `ContainerConfig` for the runtime."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from imex_dra.base.errors import ImexError, Rejected
from imex_sandbox.kubelet import toolbox
from imex_sandbox.kubelet.cdi import ContainerEdits, DeviceNode, resolve
from imex_sandbox.kubelet.client import NodeClient
from imex_sandbox.kubelet.config import StandIn
from imex_sandbox.kubelet.dra import DraManager
from imex_sandbox.kubelet.environment import ConfigError, container_environment, expand
from imex_sandbox.kubelet.events import EventRecorder
from imex_sandbox.kubelet.podstate import StartError, WaitingReason
from imex_sandbox.kubelet.runtime import BindMount, ContainerConfig, ContainerRuntime, PodSandbox
from imex_sandbox.kubelet.toolbox import Toolbox
from imex_sandbox.kubelet.views.pod import Container, Pod
from imex_sandbox.kubelet.volumes import Volumes, volume_path

_DEFAULT_ENVIRONMENT = {"HOME": "/root", "TERM": "xterm"}


class ContainerConfigBuilder:
    """`root` is the directory of the node; `stand_ins` replace commands that the host does not have."""

    def __init__(
        self, client: NodeClient, dra: DraManager, root: Path, host_ip: str, stand_ins: tuple[StandIn, ...]
    ) -> None:
        self._client = client
        self._dra = dra
        self._volumes = Volumes(client)
        self._root = root
        self._host_ip = host_ip
        self._stand_ins = stand_ins
        self._toolbox = Toolbox(root / "bin")

    async def set_up_pod(self, sandbox: PodSandbox) -> None:
        sandbox.directory.mkdir(parents=True, exist_ok=True)
        self._toolbox.install()
        await self._volumes.set_up(sandbox.pod, sandbox.directory, self._addresses(sandbox))

    def clean_up_pod(self, sandbox: PodSandbox) -> None:
        shutil.rmtree(sandbox.directory, ignore_errors=True)

    async def build(self, pod: Pod, container: Container, sandbox: PodSandbox) -> ContainerConfig:
        edits = self._container_edits(pod, container)
        variables = await container_environment(self._client, pod, container, self._addresses(sandbox))
        injected = dict(entry.split("=", 1) for entry in edits.env if "=" in entry)
        return ContainerConfig(
            pod,
            container,
            sandbox.directory,
            argv=tuple(expand(word, variables) for word in toolbox.container_argv(container, self._stand_ins)),
            environment=self._base_environment(pod) | variables | injected,
            mounts=(*self._toolbox.mounts, *_volume_mounts(container, sandbox), *self._cdi_mounts(edits)),
        )

    def _container_edits(self, pod: Pod, container: Container) -> ContainerEdits:
        directories = (self._root / "etc" / "cdi", self._root / "run" / "cdi")
        try:
            return resolve(directories, self._dra.cdi_devices(pod, container))
        except Rejected as error:
            raise Rejected(f"failed to create container: CDI device injection failed: {error}") from error

    def _base_environment(self, pod: Pod) -> dict[str, str]:
        # Service IPs are not routed on a simulated node, so pods get the address of the API server itself.
        host, port = self._client.server
        return {
            "PATH": toolbox.search_path(os.environ.get("PATH", os.defpath)),
            "HOSTNAME": pod.hostname,
            **_DEFAULT_ENVIRONMENT,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
        }

    def _addresses(self, sandbox: PodSandbox) -> Mapping[str, str]:
        return {"status.hostIP": self._host_ip, "status.podIP": sandbox.ip}

    def _cdi_mounts(self, edits: ContainerEdits) -> list[BindMount]:
        mounts = [BindMount(Path(m.host_path), m.container_path, "ro" in m.options) for m in edits.mounts]
        return [*mounts, *(BindMount(self._device_file(node), node.path) for node in edits.device_nodes)]

    def _device_file(self, device: DeviceNode) -> Path:
        """Devices cannot be created in a user namespace: a file in the node's directory represents the device."""
        file = self._root / device.path.lstrip("/")
        if file.exists():
            return file
        host = Path(device.host_path or device.path)
        if host.exists():
            return host
        raise Rejected(f"failed to create container: device {device.path}: neither {file} nor {host} exists")


class ContainerStarter:
    """Starts the containers of one pod."""

    def __init__(self, builder: ContainerConfigBuilder, runtime: ContainerRuntime, events: EventRecorder) -> None:
        self._builder = builder
        self._runtime = runtime
        self._events = events
        self.waiting: dict[str, WaitingReason] = {}
        """Why a container could not be created."""

    async def start(self, pod: Pod, name: str, sandbox: PodSandbox) -> bool:
        """False if the container could not be created.

        A container whose command could not be executed was created: it is a run that terminated at once.
        """
        container = next(c for c in pod.spec.all_containers if c.name == name)
        try:
            config = await self._builder.build(pod, container, sandbox)
            self._events.normal(pod, "Created", "Container created", container=name)
            await self._runtime.start_container(sandbox, config)
        except ImexError as error:
            self._events.warning(pod, "Failed", f"Error: {error}", container=name)
            if not isinstance(error, StartError):
                self.waiting[name] = WaitingReason(_waiting_reason(error), str(error))
                return False
        else:
            self._events.normal(pod, "Started", "Container started", container=name)
        self.waiting.pop(name, None)
        return True


def _waiting_reason(error: ImexError) -> str:
    return "CreateContainerConfigError" if isinstance(error, ConfigError) else "CreateContainerError"


def _volume_mounts(container: Container, sandbox: PodSandbox) -> list[BindMount]:
    mounts = []
    for mount in container.volume_mounts:
        source = volume_path(sandbox.directory, mount.name) / mount.sub_path
        # A subPath that does not exist is created as a directory.
        if not source.exists():
            source.mkdir(parents=True)
        mounts.append(BindMount(source, mount.mount_path, mount.read_only))
    return mounts
