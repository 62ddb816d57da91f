"""Our driver on a simulated node: `imex node` and `imex daemon`, each as a coroutine and as a command.

They are the programs that pods run, with the same arguments; only nvidia-imex-ctl is not started for each question
of a coroutine. A node's program waits for its kubeconfig: the node must exist before it has a token.
"""

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.agent import Agent
from imex_dra.hardware.simulated import SimulatedHardware
from imex_dra.imex.files import Files
from imex_dra.imex.link import DaemonState, messages
from imex_dra.kube.client import Client
from imex_dra.node import program as node_program
from imex_dra.sandbox.cluster.crewsettings import CrewNode
from imex_dra.sandbox.cluster.inprocessctl import InProcessCtl
from imex_dra.sandbox.cluster.programs import DIES_WITH_US

_IMEX = (sys.executable, "-m", "imex_dra.cli")
_REGISTERED = "the kubelet registered the driver"
_LOOK = 0.1


class ImexNode:
    name = "imex-node"

    def __init__(self, node: CrewNode) -> None:
        self._node = node

    @property
    def argv(self) -> Sequence[str]:
        node = self._node
        where = (f"--kubelet-dir={node.root / 'k'}", f"--cdi-dir={node.root / 'run/cdi'}")
        who = (f"--node-name={node.name}", f"--address={node.address}", f"--kubeconfig={node.kubeconfig}")
        return [*_IMEX, "node", *who, f"--node-root={node.root}", *where]

    async def run(self) -> None:
        node = self._node
        await _until(node.kubeconfig.exists)
        client = Client.connect(self.name, node.kubeconfig)
        try:
            await node_program.run(
                client,
                SimulatedHardware(node.root),
                node=node.name,
                address=node.address,
                kubelet=node.root / "k",
                cdi=node.root / "run/cdi",
                agent=node.root / "run/daemon.sock",
            )
        finally:
            await client.close()

    async def serves(self, log: Path) -> None:
        """Until the kubelet took the process in; without a kubelet it is in vain to wait."""
        await _until(lambda: log.exists() and _REGISTERED in log.read_text())


class ImexDaemon:
    """`threads` ask the soft IMEX daemons how they are."""

    name = "imex-daemon"

    def __init__(self, node: CrewNode, fabric: Path, threads: Executor) -> None:
        self._root = node.root
        self._fabric = fabric
        self._threads = threads
        self._socket = node.root / "run/daemon.sock"

    @property
    def argv(self) -> Sequence[str]:
        soft = (f"--imex={shlex.join(self._soft('daemon'))}", f"--imex-ctl={shlex.join(self._soft('ctl'))}")
        return [*_IMEX, "daemon", f"--node-root={self._root}", *soft]

    async def run(self) -> None:
        directory = self._root / "etc/nvidia-imex"
        files = Files(directory, self._root / "hosts")
        ctl = InProcessCtl(self._root, files.config, self._threads)
        agent = Agent(files, directory / "membership.json", command=self._soft("daemon"), ctl=ctl)
        await agent.run(self._socket)

    async def serves(self, log: Path) -> None:
        """Until its nvidia-imex is READY."""
        while not await _says_ready(self._socket):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    def _soft(self, program: str) -> Sequence[str]:
        variables = (f"IMEX_NODE_ROOT={self._root}", f"IMEX_FABRIC_DIR={self._fabric}")
        return ["env", *variables, *DIES_WITH_US, sys.executable, "-m", f"imex_dra.softimex.{program}"]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a file says nothing when it appears
        await asyncio.sleep(_LOOK)


async def _says_ready(socket: Path) -> bool:
    """False if nobody is there, or no longer."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    try:
        async for state in messages(reader, DaemonState):
            if state.state is ImexState.READY:
                return True
    finally:
        writer.close()
    return False
