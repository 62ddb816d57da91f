"""What the crew does on a node: `imex node` and `imex daemon`, each as a coroutine and as a command.

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
from imex_dra.node import program as node
from imex_dra.sandbox.cluster.innerctl import InnerCtl
from imex_dra.sandbox.cluster.posts import Post
from imex_dra.sandbox.cluster.programs import DIES_WITH_US

_IMEX = (sys.executable, "-m", "imex_dra.cli")
_REGISTERED = "the kubelet registered the driver"
_LOOK = 0.1


class NodeWork:
    name = "imex-node"

    def __init__(self, post: Post) -> None:
        self._post = post

    @property
    def argv(self) -> Sequence[str]:
        post = self._post
        where = (f"--kubelet-dir={post.root / 'k'}", f"--cdi-dir={post.root / 'run/cdi'}")
        who = (f"--node-name={post.node}", f"--address={post.address}", f"--kubeconfig={post.kubeconfig}")
        return [*_IMEX, "node", *who, f"--node-root={post.root}", *where]

    async def run(self) -> None:
        post = self._post
        await _until(post.kubeconfig.exists)
        client = Client.connect(self.name, post.kubeconfig)
        try:
            await node.run(
                client,
                SimulatedHardware(post.root),
                node=post.node,
                address=post.address,
                kubelet=post.root / "k",
                cdi=post.root / "run/cdi",
                agent=post.root / "run/daemon.sock",
            )
        finally:
            await client.close()

    async def serves(self, log: Path) -> None:
        """Until the kubelet took the process in; without a kubelet it is in vain to wait."""
        await _until(lambda: log.exists() and _REGISTERED in log.read_text())


class DaemonWork:
    """`threads` ask the soft IMEX daemons how they are."""

    name = "imex-daemon"

    def __init__(self, post: Post, fabric: Path, threads: Executor) -> None:
        self._root = post.root
        self._fabric = fabric
        self._threads = threads
        self._socket = post.root / "run/daemon.sock"

    @property
    def argv(self) -> Sequence[str]:
        soft = (f"--imex={shlex.join(self._soft('daemon'))}", f"--imex-ctl={shlex.join(self._soft('ctl'))}")
        return [*_IMEX, "daemon", f"--node-root={self._root}", *soft]

    async def run(self) -> None:
        directory = self._root / "etc/nvidia-imex"
        files = Files(directory, self._root / "hosts")
        ctl = InnerCtl(self._root, files.config, self._threads)
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
