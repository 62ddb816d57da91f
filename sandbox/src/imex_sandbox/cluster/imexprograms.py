"""The IMEX programs of a simulated node: `imex node`, `imex daemon` and the nvidia-imex below it.

`imex node` and `imex daemon` are the programs that the driver's pods run, with the same arguments, each as a
coroutine and as a command. nvidia-imex is the soft IMEX daemon, always a process.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import Rejected
from imex_dra.daemon.agent import Agent
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.files import ImexFiles
from imex_dra.imex.link import DaemonState, messages
from imex_dra.kube.client import Client
from imex_dra.node import program as node_program
from imex_sandbox.cluster.programs import DIES_WITH_PARENT
from imex_sandbox.cluster.settings import DriverNode, flags
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import SimulatedHardware
from imex_sandbox.softimex.ctl import answers
from imex_sandbox.softimex.errors import SoftImexError
from imex_sandbox.softimex.noderoot import NodeRoot as SoftImexRoot

NVIDIA_IMEX = "nvidia-imex"
_IMEX = (sys.executable, "-m", "imex_dra.cli")
_SOFT_IMEX = "imex_sandbox.softimex"
_DAEMON_MODULE = f"{_SOFT_IMEX}.daemon".encode()
_REGISTERED = "registered with the kubelet"
_PERIOD = 0.1


class ImexNode:
    name = "imex-node"

    def __init__(self, node: DriverNode) -> None:
        self._node = node

    @property
    def argv(self) -> Sequence[str]:
        node = self._node
        return [
            *_IMEX,
            "node",
            f"--node-name={node.name}",
            f"--address={node.address}",
            f"--kubeconfig={node.kubeconfig}",
            f"--hardware=simulated:{node.root}",
            f"--daemon-socket={NodeRoot(node.root).daemon_socket}",
            f"--kubelet-dir={node.root / 'k'}",
            f"--cdi-dir={node.root / 'run/cdi'}",
            *flags(node.driver.node_options),
        ]

    async def run(self) -> None:
        node = self._node
        # The token in the kubeconfig is bound to the Node object, so it exists only after the kubelet registered
        # it.
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
                daemon_socket=NodeRoot(node.root).daemon_socket,
                **node.driver.node_options,
            )
        finally:
            await client.close()

    async def wait_until_serving(self, log: Path) -> None:
        """Wait for the kubelet to register the plugin. Without a kubelet this never returns."""
        await _until(lambda: log.exists() and _REGISTERED in log.read_text())


class ImexDaemon:
    """`threads` run the status queries of the soft IMEX daemons."""

    name = "imex-daemon"

    def __init__(self, node: DriverNode, fabric: Path, threads: Executor) -> None:
        self._root = node.root
        self._fabric = fabric
        self._threads = threads
        self._socket = NodeRoot(node.root).daemon_socket

    @property
    def argv(self) -> Sequence[str]:
        imex, ctl = (shlex.join(self._soft_imex(program)) for program in ("daemon", "ctl"))
        return [*_IMEX, "daemon", *NodeRoot(self._root).daemon_flags, f"--imex={imex}", f"--imex-ctl={ctl}"]

    async def run(self) -> None:
        directory = self._root / "etc/nvidia-imex"
        files = ImexFiles(directory, self._root / "hosts")
        ctl = InProcessCtl(self._root, files.config, self._threads)
        agent = Agent(files, ctl, self._soft_imex("daemon"))
        await agent.run(self._socket)

    async def wait_until_serving(self, log: Path) -> None:
        """Wait for its nvidia-imex to be READY."""
        while not await _reports_ready(self._socket):  # noqa: ASYNC110
            await asyncio.sleep(_PERIOD)

    def _soft_imex(self, program: str) -> Sequence[str]:
        variables = (f"IMEX_NODE_ROOT={self._root}", f"IMEX_FABRIC_DIR={self._fabric}")
        return ["env", *variables, *DIES_WITH_PARENT, sys.executable, "-m", f"{_SOFT_IMEX}.{program}"]


class InProcessCtl(ImexCtl):
    """nvidia-imex-ctl without a process for each query.

    36 agents that start a ctl every few seconds would take half a core of a laptop. Queries, answers and sockets
    are those of the soft ctl. They run in threads: a daemon that hangs must block its own agent only.
    """

    def __init__(self, root: Path, config: Path, threads: Executor) -> None:
        super().__init__((), config)
        self._root = SoftImexRoot(root)
        self._threads = threads

    async def _query(self, *flags: str) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, flags)

    def _answer(self, flags: tuple[str, ...]) -> bytes:
        try:
            return "\n".join(answers(["-c", str(self._config), *flags], self._root)).encode()
        except (SoftImexError, OSError):
            return b""


def nvidia_imex_pid(root: Path) -> int:
    """Of the node with this root."""
    for pid in _nvidia_imex_pids(root):
        return pid
    raise Rejected(f"nvidia-imex is not running on the node in {root}")


def signal_nvidia_imex(root: Path, number: signal.Signals) -> None:
    for pid in _nvidia_imex_pids(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _nvidia_imex_pids(root: Path) -> Iterator[int]:
    # The process is a grandchild that imex-daemon restarts at any time, so it is looked up by its environment.
    variable = f"IMEX_NODE_ROOT={root}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if _DAEMON_MODULE in words and variable in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for a file that appears
        await asyncio.sleep(_PERIOD)


async def _reports_ready(socket: Path) -> bool:
    """Wait for the agent to report READY. False if it does not listen, or closes the connection before that."""
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
