"""From a container's description to an order that a launcher can carry out: nothing is left to look up."""

import os
from collections.abc import Mapping
from pathlib import Path

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet import standins, toolbox, volumes
from imex_dra.sandbox.kubelet.cdi import DeviceNode, Edits, resolve
from imex_dra.sandbox.kubelet.claims import Claims
from imex_dra.sandbox.kubelet.containers import Bind, Order, Sandbox
from imex_dra.sandbox.kubelet.environment import environment, expanded
from imex_dra.sandbox.kubelet.references import References
from imex_dra.sandbox.kubelet.toolbox import Toolbox
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod
from imex_dra.sandbox.kubelet.volumes import Volumes

_HOME = {"HOME": "/root", "TERM": "xterm"}


class OrderDesk:
    """`root` is the node's; `rules` say what stands for images that can't run here."""

    def __init__(
        self, claims: Claims, files: Volumes, root: Path, host_ip: str, rules: tuple[standins.Rule, ...] = ()
    ) -> None:
        self._claims = claims
        self._files = files
        self._root = root
        self._host_ip = host_ip
        self._rules = rules
        self._toolbox = Toolbox(root / "bin")
        self._references = References(files)

    async def set_up(self, sandbox: Sandbox) -> None:
        sandbox.directory.mkdir(parents=True, exist_ok=True)
        self._toolbox.fill()
        await self._files.set_up(sandbox.pod, sandbox.directory, self._addresses(sandbox))

    async def order(self, pod: Pod, container: Container, sandbox: Sandbox) -> Order:
        try:
            directories = (self._root / "etc" / "cdi", self._root / "run" / "cdi")
            edits = resolve(directories, self._claims.cdi_devices(pod, container))
        except Rejected as error:
            raise Rejected(f"failed to create container: CDI device injection failed: {error}") from error
        lookup = await self._references.lookup(pod, container)
        whole = await self._references.taken_whole(pod, container)
        own = environment(pod, container, self._addresses(sandbox), lookup, whole)
        given = dict(entry.split("=", 1) for entry in edits.env if "=" in entry)
        base = {"PATH": toolbox.path(os.environ.get("PATH", os.defpath)), "HOSTNAME": pod.hostname, **_HOME}
        host, port = self._files.server
        base |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
        return Order(
            pod,
            container,
            sandbox.directory,
            argv=tuple(expanded(word, own) for word in standins.argv(container, self._rules)),
            environment=base | own | given,
            binds=(*self._toolbox.binds, *self._mounts(container, sandbox), *self._edited(edits)),
        )

    def clear(self, sandbox: Sandbox) -> None:
        volumes.remove(sandbox.directory)

    def _addresses(self, sandbox: Sandbox) -> Mapping[str, str]:
        return {"status.hostIP": self._host_ip, "status.podIP": sandbox.address}

    def _mounts(self, container: Container, sandbox: Sandbox) -> list[Bind]:
        """A part of a volume that does not exist yet is made, as a directory."""
        binds = []
        for mount in container.volume_mounts:
            source = volumes.path(sandbox.directory, mount.name) / mount.sub_path
            if not source.exists():
                source.mkdir(parents=True)
            binds.append(Bind(source, mount.mount_path, mount.read_only))
        return binds

    def _edited(self, edits: Edits) -> list[Bind]:
        mounts = [Bind(Path(m.host_path), m.container_path, "ro" in m.options) for m in edits.mounts]
        return [*mounts, *(Bind(self._device(node), node.path) for node in edits.device_nodes)]

    def _device(self, node: DeviceNode) -> Path:
        """A device can't be made in a user namespace: the node's own file of that path stands for it."""
        stands_for = self._root / node.path.lstrip("/")
        if stands_for.exists():
            return stands_for
        host = Path(node.host_path or node.path)
        if host.exists():
            return host
        raise Rejected(f"failed to create container: device {node.path}: the node has no {stands_for}")
