"""The IMEX programs of a simulated node: `imex node`, and nvidia-imex with its supervisor.

They are the programs that the driver's pods run, with the same arguments. `imex node` is a coroutine and a
command. nvidia-imex is the soft IMEX daemon.
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock

from imex_dra.api.names import NODE_PORT
from imex_dra.base.errors import Rejected
from imex_dra.base.telemetry import Telemetry, observed
from imex_dra.daemon.supervisor import NODES_FILE, Supervisor
from imex_dra.imex.ctl import ImexCtl, Reply
from imex_dra.kube.client import Client
from imex_dra.node import program as node_program
from imex_sandbox.cluster.programs import STOPS_WITH_PARENT
from imex_sandbox.cluster.settings import DriverNode, flags
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import SimulatedHardware
from imex_sandbox.softimex.ctl import answers
from imex_sandbox.softimex.errors import SoftImexError
from imex_sandbox.softimex.noderoot import NodeRoot as SoftImexRoot

NVIDIA_IMEX = "nvidia-imex"
_IMEX = (sys.executable, "-m", "imex_dra.cli")
_REGISTERED = "registered with the kubelet"
_PERIOD = 0.1


class ImexNode:
    """`threads` run the queries of the soft IMEX daemon."""

    name = "imex-node"

    def __init__(self, node: DriverNode, fabric: Path, threads: Executor, domains: "SharedAnswers") -> None:
        self._node = node
        self._root = NodeRoot(node.root)
        self._fabric = fabric
        self._threads = threads
        self._domains = domains

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
            f"--imex-dir={self._root.imex}",
            f"--imex-ctl={shlex.join(self._root.soft_imex('ctl', self._fabric))}",
            f"--kubelet-dir={node.root / 'k'}",
            f"--cdi-dir={node.root / 'run/cdi'}",
            f"--metrics-address={node.address}:{NODE_PORT}",
            *flags(node.driver.node_options),
        ]

    async def run(self) -> None:
        node = self._node
        # The token in the kubeconfig is bound to the Node object, so it exists only after the kubelet registered
        # it.
        await _until(node.kubeconfig.exists)
        telemetry = Telemetry(node=node.name)
        client = Client.connect(self.name, node.kubeconfig, metrics=telemetry.metrics)
        work = node_program.run(
            client,
            SimulatedHardware(node.root),
            node=node.name,
            address=node.address,
            kubelet=node.root / "k",
            cdi=node.root / "run/cdi",
            imex_directory=self._root.imex,
            ctl=InProcessCtl(node.root, self._threads, self._domains),
            telemetry=telemetry,
            **node.driver.node_options,
        )
        try:
            await observed(telemetry, f"{node.address}:{NODE_PORT}", work)
        finally:
            await client.close()

    async def wait_until_serving(self, log: Path) -> None:
        """Wait for the kubelet to register the plugin. Without a kubelet this never returns."""
        await _until(lambda: log.exists() and _REGISTERED in log.read_text())


class ImexSupervisor:
    """What runs in a daemon pod: nvidia-imex and its supervisor. Always a process."""

    name = "imex-supervisor"

    def __init__(self, node: DriverNode, fabric: Path) -> None:
        self._root = NodeRoot(node.root)
        self._fabric = fabric

    @property
    def argv(self) -> Sequence[str]:
        return [*STOPS_WITH_PARENT, *self._root.supervisor_command(self._fabric)]

    async def wait_until_serving(self, log: Path) -> None:
        await _until((self._root.imex / "control").exists)


class SharedAnswers:
    """What `-N` answered a moment ago, for all nodes of a rack that would ask the same daemons.

    18 nodes that each ask 18 daemons took most of the CPU time of a rack at rest.
    """

    def __init__(self, seconds: float = 0.3) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._answers: dict[str, _Answer] = {}

    def get(self, node_list: str, addresses: Mapping[str, str], ask: Callable[[], Reply]) -> Reply:
        """Those who come while a query is under way wait for its answer. Only they: each rack has its own lock."""
        with self._lock:
            answer = self._answers.setdefault(node_list, _Answer())
        with answer.lock:
            if answer.addresses != addresses or time.monotonic() - answer.at >= self._seconds:
                answer.reply, answer.addresses = ask(), addresses
                answer.at = time.monotonic()
            return answer.reply


class _Answer:
    def __init__(self) -> None:
        self.lock = Lock()
        self.reply = Reply()
        self.addresses: Mapping[str, str] | None = None
        self.at = 0.0


class InProcessCtl(ImexCtl):
    """nvidia-imex-ctl without a process for each query.

    36 node programs that start a ctl every few seconds would take half a core of a laptop. Queries, answers and
    sockets are those of the soft ctl. They run in threads: a daemon that hangs must block its own node only.
    """

    def __init__(self, root: Path, threads: Executor, domains: SharedAnswers) -> None:
        super().__init__(())
        self._root = SoftImexRoot(root)
        self._threads = threads
        self._domains = domains

    async def _query(self, config: Path, *flags: str) -> Reply:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, config, flags)

    def _answer(self, config: Path, flags: tuple[str, ...]) -> Reply:
        # Not the text of `-N`: it marks the node that asks. A fault in the network of a node is its own.
        if flags != ("-N", "-j") or self._root.network():
            return self._ask_daemons(config, flags)
        try:
            node_list = config.with_name(NODES_FILE).read_text()
        except OSError as error:
            return Reply(problem=str(error))
        return self._domains.get(node_list, self._root.hosts(), lambda: self._ask_daemons(config, flags))

    def _ask_daemons(self, config: Path, flags: tuple[str, ...]) -> Reply:
        try:
            return Reply("\n".join(answers(["-c", str(config), *flags], self._root)).encode())
        except (SoftImexError, OSError) as error:
            return Reply(problem=str(error))


def nvidia_imex_pid(root: Path) -> int:
    """Of the node with this root."""
    found = Supervisor(NodeRoot(root).imex).find()
    # A supervisor that hangs does not know that the process has ended.
    if found is None or not found.pid or not Path(f"/proc/{found.pid}").exists():
        raise Rejected(f"nvidia-imex is not running on the node in {root}")
    return found.pid


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for a file that appears
        await asyncio.sleep(_PERIOD)
