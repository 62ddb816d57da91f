"""What happens to machines: power, network, fabric, disks; nodes that are moved or replaced."""

import random

from imex_dra.api.names import PartitionId
from imex_sandbox.embedded.storage import Key
from imex_sandbox.simulation.cluster import SimulatedCluster, partition_of_rack
from imex_sandbox.simulation.kinds import NODES
from imex_sandbox.simulation.node import SimulatedNode
from imex_sandbox.simulation.undos import Undos

_RACKS = 3
"""One of them is empty at first, or two."""


class MachineFaults:
    def __init__(self, cluster: SimulatedCluster, undos: Undos) -> None:
        self._cluster = cluster
        self._undos = undos
        self._replaced = 0

    def reboot(self, chance: random.Random) -> str:
        return self._power_off(chance, "reboot", 120.0)

    def power_off(self, chance: random.Random) -> str:
        return self._power_off(chance, "power off", 4 * 3600.0)

    def _power_off(self, chance: random.Random, verb: str, seconds: float) -> str:
        node = self._node(chance)
        if not node.powered:
            return ""
        self._cluster.power_off(node)
        self._undos.later(seconds, chance, lambda: self._power_on(node))
        return f"{verb} {node.name}"

    def replace_node(self, chance: random.Random) -> str:
        """The operator deletes the Node of a machine that is off; sometimes another machine gets its name."""
        off = [node for node in self._cluster.nodes.values() if not node.powered]
        if not off:
            return ""
        node = chance.choice(off)
        if self._cluster.storage.get(NODES, Key("", node.name)) is not None:
            self._cluster.objects.delete(NODES, Key("", node.name), {})
        if chance.random() < 0.5:
            return f"delete Node {node.name}, which is off"
        self._replaced += 1
        node.address = f"10.1.0.{self._replaced}"
        node.disk.wipe()
        self._cluster.fabric.daemons.pop(node.name, None)
        self._cluster.kubelets[node.name].forget()
        return f"replace {node.name} by another machine"

    def move_node(self, chance: random.Random) -> str:
        """The fabric manager assigns the node to another partition, whether it is drained or not."""
        node = self._node(chance)
        here = node.hardware.partition
        others = [partition for rack in range(_RACKS) if (partition := partition_of_rack(rack)) != here]
        node.hardware.move(chance.choice(others))
        if chance.random() < 0.7:
            self._undos.later(1800.0, chance, lambda: self._move_back(node, here))
        return f"move {node.name} to {node.hardware.partition}"

    def cut_node_from_api(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.cut(cut=True)
        self._undos.later(2400.0, chance, lambda: self._reconnect(node))
        return f"cut {node.name} off from the API"

    def cut_nodes_apart(self, chance: random.Random) -> str:
        one, other = self._node(chance).name, self._node(chance).name
        if one == other:
            return ""
        pair = frozenset((one, other))
        self._cluster.fabric.cuts.add(pair)
        self._cluster.fabric.notify()
        self._undos.later(1200.0, chance, lambda: self._reconnect_pair(pair))
        return f"cut {one} and {other} apart"

    def break_fabric(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.hardware.broken = "3 of 18 links are down"
        self._undos.later(900.0, chance, lambda: self._repair_fabric(node))
        return f"break the fabric of {node.name}"

    def reload_driver(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.hardware.major += 1
        return f"reload the GPU driver of {node.name}"

    def fill_disk(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.disk.is_full = True
        self._undos.later(900.0, chance, lambda: setattr(node.disk, "is_full", False))
        return f"fill the disk of {node.name}"

    def break_disk(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.disk.errors = chance.choice((0.02, 0.2, 1.0))
        self._undos.later(600.0, chance, lambda: setattr(node.disk, "errors", 0.0))
        return f"fail {node.disk.errors:.0%} of the disk operations of {node.name}"

    def lose_checkpoint(self, chance: random.Random) -> str:
        node = self._node(chance)
        if not node.checkpoint.exists():
            return ""
        node.disk.changes += 1
        if chance.random() < 0.5:
            node.checkpoint.unlink()
            return f"lose the checkpoint of {node.name}"
        node.checkpoint.write_bytes(node.checkpoint.read_bytes()[:100])
        return f"truncate the checkpoint of {node.name}"

    def _node(self, chance: random.Random) -> SimulatedNode:
        return chance.choice(list(self._cluster.nodes.values()))

    def _power_on(self, node: SimulatedNode) -> None:
        if not node.powered:
            self._cluster.power_on(node)

    def _move_back(self, node: SimulatedNode, partition: PartitionId) -> None:
        node.hardware.move(partition)

    def _reconnect(self, node: SimulatedNode) -> None:
        node.cut(cut=False)
        self._cluster.kubelets[node.name].wake()

    def _reconnect_pair(self, pair: frozenset[str]) -> None:
        self._cluster.fabric.cuts.discard(pair)
        self._cluster.fabric.notify()

    def _repair_fabric(self, node: SimulatedNode) -> None:
        node.hardware.broken = ""
