"""The kubelets that the contract suite runs on: the real one, and the simulated one."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.kubelet.client import ClientPool
from imex_sandbox.kubelet.config import NodeConfig, NodeFacts
from imex_sandbox.kubelet.fleet import Fleet
from imex_sandbox.kubelet.hollow import HollowLauncher
from imex_sandbox.kubelet.processes import ProcessLauncher
from imex_sandbox.kubelet.runtime import Launcher
from imex_sandbox.kubelet.server import server_tls
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from tests.waiting import until


class Kubelet(Protocol):
    name: str
    root: Path

    @property
    def directory(self) -> Path:
        """Contains `plugins` and `plugins_registry`."""

    def create_device(self, path: str) -> None:
        """Makes a CDI device node with this path usable on the node."""

    def start(self) -> None:
        """Starts the node and waits until it is ready."""

    def stop(self) -> None:
        """Stops the node with its containers."""

    def kill_kubelet(self) -> None:
        """Without notice; containers continue."""

    def start_kubelet(self) -> None: ...


class RealKubelet:
    name = "real"

    def __init__(self, root: Path, control_plane: ControlPlane) -> None:
        self.root = root / "real"
        self._network = Network(root)
        self._control_plane = control_plane

    @property
    def directory(self) -> Path:
        return self.root / "k"

    def create_device(self, path: str) -> None:
        """Not needed: the runtime creates device nodes from their major and minor numbers."""

    def start(self) -> None:
        self._network.start()
        self._node = Node(self.name, self.root, control_plane=self._control_plane, network=self._network)
        self._node.start()
        self._node.until_ready()

    def stop(self) -> None:
        self._node.stop()
        self._network.stop()

    def kill_kubelet(self) -> None:
        self._node.kubelet.kill()
        assert self._node.kubelet.wait(within=60)

    def start_kubelet(self) -> None:
        self._node.kubelet.start()


class SimulatedKubelet:
    """Runs in a thread with its own event loop, so that tests use it as they use the real one."""

    def __init__(self, name: str, launcher: Launcher, root: Path, control_plane: ControlPlane) -> None:
        self.name = name
        self.root = root / name
        self._launcher = launcher
        self._control_plane = control_plane
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)

    @property
    def directory(self) -> Path:
        return self.root / "k"

    def create_device(self, path: str) -> None:
        """A file in the node's directory represents the device."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def start(self) -> None:
        self._thread.start()
        self._run(self._start_fleet())
        until(self._is_ready)

    def stop(self) -> None:
        self._run(self._stop_fleet())
        self._run(self._close_connections())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill_kubelet(self) -> None:
        self._run(self._machine.kill_kubelet())

    def start_kubelet(self) -> None:
        self._loop.call_soon_threadsafe(self._machine.start_kubelet)

    async def _close_connections(self) -> None:
        """A request that was cancelled with its kubelet closes its connection in later rounds of the loop;
        asyncio.run waits for them, and so must a loop that is stopped by hand.
        """
        await self._loop.shutdown_asyncgens()
        for _ in range(10):
            await asyncio.sleep(0)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start_fleet(self) -> None:
        control_plane, authority = self._control_plane, self._control_plane.authority
        self._clients = ClientPool(authority.certificate)
        facts = NodeFacts(self.name, "127.16.0.10", str(uuid.uuid4()))
        token = control_plane.identities.token(f"system:node:{self.name}")
        config = NodeConfig(facts, self.root, token, control_plane.url)
        serving = authority.server(f"{self.name}-kubelet", [f"IP:{facts.address}"])
        tls = server_tls(serving.certificate, serving.key, authority.certificate)
        self._fleet = Fleet(self._clients, [config], launcher=self._launcher, tls=tls)
        self._machine = self._fleet.machines[self.name]
        self._fleet.start()

    async def _stop_fleet(self) -> None:
        await self._fleet.stop()
        await self._clients.close()

    def _is_ready(self) -> bool:
        try:
            node = self._control_plane.kubectl.get("node", self.name)
        except Rejected:
            return False
        return not node["spec"].get("taints")


def hollow(root: Path, control_plane: ControlPlane) -> Kubelet:
    return SimulatedKubelet("hollow", HollowLauncher(), root, control_plane)


def simulated(root: Path, control_plane: ControlPlane) -> Kubelet:
    return SimulatedKubelet("simulated", ProcessLauncher(), root, control_plane)


NODE_NAMES = ("hollow", "simulated", "node-a", "node-b", "node-c")
NODE_USERS = {f"system:node:{name}": ["system:nodes"] for name in NODE_NAMES}

REAL = pytest.param("real", marks=pytest.mark.node)
HOLLOW = pytest.param("hollow", marks=pytest.mark.kube)
SIMULATED = pytest.param("simulated", marks=pytest.mark.kube)

with_processes = pytest.mark.parametrize("kubelet", [REAL, SIMULATED], indirect=True, scope="session")
"""For tests that look inside containers: hollow containers have no processes, files or logs."""

IMPLEMENTATIONS: dict[str, Callable[[Path, ControlPlane], Kubelet]] = {
    "real": RealKubelet,
    "hollow": hollow,
    "simulated": simulated,
}
