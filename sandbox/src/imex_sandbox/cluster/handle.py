"""A handle on a running cluster, for tests, faults and the demo. The package's docstring lists all actions."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_sandbox import control, racks
from imex_sandbox.cluster.lock import is_locked, wait_until_unlocked
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.process import Process

_READY_WITHIN = 300.0
_LOG_END = 1500
"""Characters."""


class NodeEntry(Struct, frozen=True):
    name: str
    rack: str
    address: str
    partition: str
    """As the rack was laid out. A fault may have moved the node: see `root.hardware()`."""


class Description(Struct, frozen=True):
    """`cluster.json`, written when the cluster is ready."""

    name: str
    number: int
    nodes: tuple[NodeEntry, ...]


class Node:
    """Its programs: kubelet, imex-node, imex-supervisor, nvidia-imex."""

    def __init__(self, cluster: "Cluster", entry: NodeEntry) -> None:
        self._cluster = cluster
        self.name, self.rack, self.address, self.partition = entry.name, entry.rack, entry.address, entry.partition
        self.root = NodeRoot(cluster.paths.node(entry.name))

    def kill(self, program: str) -> None:
        self._ask("kill", program)

    def start(self, program: str) -> None:
        self._ask("start", program)

    def hang(self, program: str) -> None:
        self._ask("hang", program)

    def resume(self, program: str) -> None:
        self._ask("resume", program)

    def pid(self, program: str) -> int:
        return int(self._ask("pid", program))

    def power_off(self) -> None:
        self._ask("power-off")

    def power_on(self) -> str:
        """Return the new boot id."""
        return str(self._ask("power-on"))

    def reboot(self) -> str:
        """Return the new boot id."""
        self.power_off()
        return self.power_on()

    def _ask(self, action: str, program: str = "") -> Any:
        return self._cluster.ask(action, node=self.name, program=program)


class Cluster:
    """Its programs: imex-controller, kube-apiserver."""

    def __init__(self, name: str) -> None:
        self.paths = ClusterPaths(name)
        if not is_locked(name) or not self.paths.description.exists():
            raise Misconfigured(
                f"cluster {name} is not running, or still starting: start it with `imex up --name {name}`"
            )
        description = msgspec.json.decode(self.paths.description.read_bytes(), type=Description)
        self.name, self.number = name, description.number
        self.kubeconfig = self.paths.kubeconfig
        self.kubectl = Kubectl(self.kubeconfig)
        self.audit_log = self.paths.control_plane / "audit.log"
        self.nodes = {entry.name: Node(self, entry) for entry in description.nodes}

    @property
    def racks(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(node.rack, []).append(node)
        return found

    def ask(self, action: str, *, node: str = "", program: str = "", **options: Any) -> Any:
        return control.ask(self.paths.control_socket, control.Request(action, node, program, options))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status")
        return found

    def kill(self, program: str) -> None:
        self.ask("kill", program=program)

    def start(self, program: str) -> None:
        self.ask("start", program=program)

    def pid(self, program: str) -> int:
        return int(self.ask("pid", program=program))

    def logs(self) -> str:
        """The end of every log, for the message of a test that fails."""
        paths = sorted(self.paths.logs.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-_LOG_END:]}" for path in paths)


@contextmanager
def running(spec: racks.Cluster, *flags: str) -> Iterator[Cluster]:
    """`imex up` with these flags, as a process that ends with the block or with this process."""
    with tempfile.TemporaryDirectory(prefix="imex-up-") as directory:
        file = Path(directory) / "cluster.yaml"
        file.write_bytes(msgspec.yaml.encode(spec))
        process = Process("imex up", command(file, *flags), log=Path(directory) / "up.log")
        process.start()
        try:
            process.until(lambda: is_ready(spec.name), within=_READY_WITHIN)
            yield Cluster(spec.name)
        finally:
            process.stop(within=30)
            wait_until_unlocked(spec.name, within=30)


def command(file: Path, *flags: str) -> Sequence[str | Path]:
    return [sys.executable, "-m", "imex_dra.cli", "up", file, *flags]


def is_ready(name: str) -> bool:
    """The control socket appears when everything is ready."""
    return is_locked(name) and ClusterPaths(name).control_socket.exists()
