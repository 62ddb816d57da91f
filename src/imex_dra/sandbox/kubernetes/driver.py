"""Our driver on real nodes: the same programs that pods run, as processes on each node's machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

from imex_dra.hardware.simulated import HardwareFile
from imex_dra.sandbox.kubernetes.node import Node
from imex_dra.sandbox.noderoot import NodeRoot
from imex_dra.sandbox.process import Process

_PYTHON = (sys.executable, "-m")


def controller(kubeconfig: Path, log: Path, *flags: str) -> Process:
    return Process(
        "imex controller", [*_PYTHON, "imex_dra.cli", "controller", f"--kubeconfig={kubeconfig}", *flags], log=log
    )


class NodeDriver:
    """`imex node` and `imex daemon` on one node, with simulated hardware and soft IMEX below them."""

    def __init__(self, node: Node, *, kubeconfig: Path, fabric: Path, flags: Sequence[str] = ()) -> None:
        self.node = node
        self.root = NodeRoot(node.root)
        self._kubeconfig = kubeconfig
        self._fabric = fabric
        self._flags = flags
        self.program = self.node_program()
        self.daemon = node.machine.process("imex-daemon", *self._daemon_command())

    def start(self, hardware: HardwareFile) -> None:
        self.root.make(hardware, address=self.node.addresses.node)
        self._fabric.mkdir(exist_ok=True)
        self.daemon.start()
        self.program.start()

    def stop(self) -> None:
        for process in (self.program, self.daemon):
            process.stop()

    def node_program(self, name: str = "imex-node", flags: Sequence[str] | None = None) -> Process:
        """Another one may run beside the first, as during an update; with other flags if need be."""
        return self.node.machine.process(name, *self._node_command(), *(self._flags if flags is None else flags))

    def _node_command(self) -> Sequence[str]:
        return [
            *_PYTHON,
            "imex_dra.cli",
            "node",
            f"--node-name={self.node.name}",
            f"--address={self.node.addresses.node}",
            f"--node-root={self.node.root}",
            f"--kubeconfig={self._kubeconfig}",
        ]

    def _daemon_command(self) -> Sequence[str]:
        soft = f"{sys.executable} -m imex_dra.softimex"
        return [
            "env",
            f"IMEX_NODE_ROOT={self.node.root}",
            f"IMEX_FABRIC_DIR={self._fabric}",
            *_PYTHON,
            "imex_dra.cli",
            "daemon",
            f"--node-root={self.node.root}",
            f"--imex={soft}.daemon",
            f"--imex-ctl={soft}.ctl",
        ]
