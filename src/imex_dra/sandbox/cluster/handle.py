"""A running cluster in the hands of a test, a fault or a demo: see the package's own words for all it can do."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox import control, racks
from imex_dra.sandbox.cluster.hold import free, is_held
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.kubernetes.kubectl import Kubectl
from imex_dra.sandbox.noderoot import NodeRoot
from imex_dra.sandbox.process import Process


class NodeEntry(Struct, frozen=True):
    name: str
    rack: str
    address: str
    partition: str
    """As the racks were laid out; `root.hardware()` says what is so now."""


class Description(Struct, frozen=True):
    """`cluster.json`: written when the cluster is ready."""

    name: str
    number: int
    server: str
    nodes: tuple[NodeEntry, ...]
    driver: bool = True


class Node:
    """Programs: kubelet, imex-node, imex-daemon, nvidia-imex."""

    def __init__(self, cluster: "Cluster", entry: NodeEntry) -> None:
        self._cluster = cluster
        self.name, self.rack, self.address, self.partition = entry.name, entry.rack, entry.address, entry.partition
        self.root = NodeRoot(cluster.places.node(entry.name))

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

    def power_on(self, boot_id: str = "") -> str:
        """Returns the boot id."""
        return str(self._ask("power-on", boot_id=boot_id))

    def reboot(self, boot_id: str = "") -> str:
        self.power_off()
        return self.power_on(boot_id)

    def _ask(self, do: str, program: str = "", **options: Any) -> Any:
        return self._cluster.ask(do, node=self.name, program=program, **options)


class Cluster:
    """Programs: imex-controller, kube-apiserver."""

    def __init__(self, name: str) -> None:
        self.places = Places(name)
        if not is_held(name) or not self.places.description.exists():
            raise Misconfigured(f"no cluster {name} runs here, or it is still starting: `imex up --name {name}`")
        self.description = msgspec.json.decode(self.places.description.read_bytes(), type=Description)
        self.name, self.number, self.server = name, self.description.number, self.description.server
        self.kubeconfig = self.places.kubeconfig
        self.kubectl = Kubectl(self.kubeconfig)
        self.audit_log = self.places.control_plane / "audit.log"
        self.nodes = {entry.name: Node(self, entry) for entry in self.description.nodes}

    @property
    def racks(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(node.rack, []).append(node)
        return found

    def ask(self, do: str, *, node: str = "", program: str = "", **options: Any) -> Any:
        return control.ask(self.places.control, control.Request(do, node, program, options))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status")
        return found

    def kill(self, program: str) -> None:
        self.ask("kill", program=program)

    def start(self, program: str) -> None:
        self.ask("start", program=program)

    def hang(self, program: str) -> None:
        self.ask("hang", program=program)

    def resume(self, program: str) -> None:
        self.ask("resume", program=program)

    def pid(self, program: str) -> int:
        return int(self.ask("pid", program=program))

    def compact(self) -> None:
        self.ask("compact")

    def logs(self, last: int = 1500) -> str:
        """The end of every log: for the words of a test that failed."""
        paths = sorted(self.places.logs.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-last:]}" for path in paths)


@contextmanager
def running(spec: racks.Cluster, *flags: str, ready_within: float = 300) -> Iterator[Cluster]:
    """`imex up` as a process that dies with ours, until the end of the block; `flags` are the command's."""
    with tempfile.TemporaryDirectory(prefix="imex-up-") as directory:
        file = Path(directory) / "cluster.yaml"
        file.write_bytes(msgspec.yaml.encode(spec))
        process = Process("imex up", command(file, *flags), log=Path(directory) / "up.log")
        process.start()
        try:
            process.until(lambda: is_ready(spec.name), within=ready_within)
            yield Cluster(spec.name)
        finally:
            process.stop(within=30)
            free(spec.name, within=30)


def command(file: Path, *flags: str) -> Sequence[str | Path]:
    return [sys.executable, "-m", "imex_dra.cli", "up", file, *flags]


def is_ready(name: str) -> bool:
    """Its control socket is there from the moment that everything works."""
    return is_held(name) and Places(name).control.exists()
