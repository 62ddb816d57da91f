"""The kubelets that are held to the contracts: a real one, and ours."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet.certificates import tls
from imex_dra.sandbox.kubelet.client import Switchboard
from imex_dra.sandbox.kubelet.containers import Launcher
from imex_dra.sandbox.kubelet.fleet import Fleet
from imex_dra.sandbox.kubelet.hollow import Hollow
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.processes import Processes
from imex_dra.sandbox.kubelet.settings import Member
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.network import Network
from imex_dra.sandbox.kubernetes.node import Node
from tests.sandbox.waiting import eventually


class Kubelet(Protocol):
    name: str
    root: Path

    @property
    def directory(self) -> Path:
        """With `plugins` and `plugins_registry`."""

    def channel(self, number: int) -> dict[str, Any]:
        """What a CDI device node says besides its path, where it stands for an IMEX channel."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """The whole node."""

    def kill(self) -> None:
        """The kubelet alone, without notice: its containers go on."""

    def revive(self) -> None: ...


class RealKubelet:
    name = "real"

    def __init__(self, root: Path, control_plane: ControlPlane) -> None:
        self.root = root / "real"
        self._network = Network(root)
        self._control_plane = control_plane

    @property
    def directory(self) -> Path:
        return self.root / "k"

    def channel(self, number: int) -> dict[str, Any]:
        return {"type": "c", "major": 238, "minor": number, "fileMode": 0o666}

    def start(self) -> None:
        self._network.start()
        self._node = Node(self.name, self.root, control_plane=self._control_plane, network=self._network)
        self._node.start()
        self._node.until_ready()

    def stop(self) -> None:
        self._node.stop()
        self._network.stop()

    def kill(self) -> None:
        self._node.kubelet.kill()
        assert self._node.kubelet.ended(within=60)

    def revive(self) -> None:
        self._node.kubelet.start()


class SimulatedKubelet:
    """In a thread with a loop of its own, so that tests wait for it as they do for the real one."""

    def __init__(
        self, name: str, launcher: Callable[[Member], Launcher], root: Path, control: ControlPlane
    ) -> None:
        self.name = name
        self.root = root / name
        self._launcher = launcher
        self._control_plane = control
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)

    @property
    def directory(self) -> Path:
        return self.root / "k"

    def channel(self, number: int) -> dict[str, Any]:
        """No device can be made in a user namespace: the node's own file stands for it."""
        file = self.root / "dev" / "nvidia-caps-imex-channels" / f"channel{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return {"type": "c", "major": 238, "minor": number, "fileMode": 0o666}

    def start(self) -> None:
        self._thread.start()
        self._run(self._started())
        assert eventually(self._ready)

    def stop(self) -> None:
        self._run(self._stopped())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill(self) -> None:
        self._run(self._machine.kill())

    def revive(self) -> None:
        self._loop.call_soon_threadsafe(self._machine.start)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _started(self) -> None:
        control = self._control_plane
        self._switchboard = Switchboard(control.url, control.authority.certificate)
        facts = NodeFacts(self.name, "127.16.0.10", str(uuid.uuid4()))
        member = Member(facts, self.root, control.identities.token(f"system:node:{self.name}"))
        authority = control.authority
        own = authority.server(f"{self.name}-kubelet", [f"IP:{facts.address}"])
        secured = tls(own.certificate, own.key, authority.certificate)
        self._fleet = Fleet(self._switchboard, [member], launcher=self._launcher, tls=secured)
        self._machine = self._fleet.machines[self.name]
        self._fleet.start()

    async def _stopped(self) -> None:
        await self._fleet.stop()
        await self._switchboard.close()

    def _ready(self) -> bool:
        try:
            node = self._control_plane.kubectl.get("node", self.name)
        except Rejected:
            return False
        return not node["spec"].get("taints")


def hollow(root: Path, control_plane: ControlPlane) -> Kubelet:
    return SimulatedKubelet("hollow", lambda member: Hollow(), root, control_plane)


def simulated(root: Path, control_plane: ControlPlane) -> Kubelet:
    return SimulatedKubelet("simulated", lambda member: Processes(), root, control_plane)


NAMES = ("hollow", "simulated", "crew-a", "crew-b", "doomed")
NODE_USERS = {f"system:node:{name}": ["system:nodes"] for name in NAMES}

REAL = pytest.param("real", marks=pytest.mark.node)
HOLLOW = pytest.param("hollow", marks=pytest.mark.kube)
SIMULATED = pytest.param("simulated", marks=pytest.mark.kube)

with_processes = pytest.mark.parametrize("kubelet", [REAL, SIMULATED], indirect=True, scope="session")
"""For tests that look into containers, which hollow ones have no inside for."""

MAKERS: dict[str, Callable[[Path, ControlPlane], Kubelet]] = {
    "real": RealKubelet,
    "hollow": hollow,
    "simulated": simulated,
}
