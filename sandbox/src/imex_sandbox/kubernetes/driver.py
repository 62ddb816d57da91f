"""The driver on a cluster without images: the programs that its pods would run, as processes."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from imex_sandbox.kubernetes.node import Node
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.process import Process
from imex_sandbox.simulated import HardwareFile

_IMEX = (sys.executable, "-m", "imex_dra.cli")


def controller(kubeconfig: Path, log: Path, *flags: str) -> Process:
    # No port of its own unless a flag says so: clusters of several tests run at the same time.
    command = [*_IMEX, "controller", f"--kubeconfig={kubeconfig}", "--metrics-address=", *flags]
    return Process("imex controller", command, log=log)


class NodeDriver:
    """`imex node` and the supervisor of nvidia-imex on a real node, with simulated hardware and soft IMEX."""

    def __init__(self, node: Node, *, kubeconfig: Path, fabric: Path, flags: Sequence[str] = ()) -> None:
        self.node = node
        self.root = NodeRoot(node.root)
        self._kubeconfig = kubeconfig
        self._fabric = fabric
        self._flags = flags
        self.program = self.node_program()
        self.supervisor = node.machine.process("imex-supervisor", *self.root.supervisor_command(fabric))

    def start(self, hardware: HardwareFile) -> None:
        self.root.make(hardware, address=self.node.addresses.node)
        self._fabric.mkdir(exist_ok=True)
        self.supervisor.start()
        self.program.start()

    def stop(self) -> None:
        for process in (self.program, self.supervisor):
            process.stop()

    def node_program(self, name: str = "imex-node", flags: Sequence[str] | None = None) -> Process:
        """A second `imex node` can run at the same time as the first, as during a rolling update."""
        return self.node.machine.process(name, *self._node_command(), *(self._flags if flags is None else flags))

    def _node_command(self) -> Sequence[str]:
        return [
            *_IMEX,
            "node",
            f"--node-name={self.node.name}",
            f"--address={self.node.addresses.node}",
            f"--hardware=simulated:{self.node.root}",
            f"--imex-dir={self.root.imex}",
            f"--imex-ctl={shlex.join(self.root.soft_imex('ctl', self._fabric))}",
            f"--kubeconfig={self._kubeconfig}",
            f"--metrics-address={self.node.addresses.node}:8081",
        ]
