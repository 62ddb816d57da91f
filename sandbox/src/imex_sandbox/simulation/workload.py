"""What users, operators and bad luck do to a cluster: operations drawn from the seed.

Every fault ends by itself. `heal` ends all of them at once, so that the cluster can come to rest.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.statuses import ApiError
from imex_sandbox.embedded.storage import Key, Stored
from imex_sandbox.simulation.cluster import USERS, SimulatedCluster
from imex_sandbox.simulation.invariants import DOMAINS, PARTITIONS
from imex_sandbox.simulation.node import SimulatedNode
from imex_sandbox.simulation.scheduling import NODES

_MAX_DOMAINS = 6
_MAX_PODS = 16


class Operation(NamedTuple):
    weight: int
    run: Callable[[], str]
    """Does it, and says what it did; empty if there was nothing to do."""


class Workload:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._chance = cluster.chance
        self._created = 0
        self._backups: dict[str, Stored] = {}
        self._undo: dict[object, Callable[[], None]] = {}
        self.operations = (
            Operation(20, self.create_domain),
            Operation(40, self.create_pod),
            Operation(25, self.delete_pod),
            Operation(4, self.force_delete_pod),
            Operation(12, self.delete_domain),
            Operation(2, self.release_domain),
            Operation(10, self.kill_node_program),
            Operation(10, self.kill_node_program_at_file_operation),
            Operation(6, self.kill_controller),
            Operation(4, self.restart_daemon),
            Operation(4, self.reboot),
            Operation(3, self.power_off),
            Operation(5, self.cut_node_from_api),
            Operation(4, self.cut_nodes_apart),
            Operation(4, self.break_fabric),
            Operation(3, self.reload_driver),
            Operation(5, self.fail_requests),
            Operation(3, self.slow_requests),
            Operation(2, self.compact),
            Operation(3, self.back_up_partition),
            Operation(1, self.lose_partition),
            Operation(1, self.restore_partition),
            Operation(1, self.replace_node),
        )

    def step(self) -> str:
        weights = [operation.weight for operation in self.operations]
        (operation,) = self._chance.choices(self.operations, weights)
        return operation.run()

    def heal(self) -> None:
        for run in list(self._undo.values()):
            run()
        for node in self._cluster.nodes.values():
            if node.program is not None:
                node.program.disarm()
            self._cluster.restart_program(node)
        for key, one in self._cluster.storage.all(PODS):
            if self._cluster.storage.get(DOMAINS, Key(USERS, _domain_of(one))) is None:
                self._cluster.objects.delete(PODS, key, {})

    # Users

    def create_domain(self) -> str:
        if len(self._cluster.storage.all(DOMAINS)) >= _MAX_DOMAINS:
            return ""
        self._created += 1
        name = f"job{self._created}"
        self._cluster.objects.create(DOMAINS, USERS, {"metadata": {"name": name}, "spec": {"numNodes": 0}})
        return f"create ComputeDomain {name}"

    def create_pod(self) -> str:
        domains = [
            key.name
            for key, one in self._cluster.storage.all(DOMAINS)
            if not one.document["metadata"].get("deletionTimestamp")
        ]
        if not domains or len(self._cluster.storage.all(PODS)) >= _MAX_PODS:
            return ""
        self._created += 1
        domain = self._chance.choice(domains)
        name = f"{domain}-{self._created}"
        claims = [{"name": "imex", "resourceClaimTemplateName": domain}]
        self._cluster.objects.create(PODS, USERS, {"metadata": {"name": name}, "spec": {"resourceClaims": claims}})
        return f"create pod {name}"

    def delete_pod(self) -> str:
        return self._delete_pod("delete", {})

    def force_delete_pod(self) -> str:
        return self._delete_pod("force-delete", {"gracePeriodSeconds": 0})

    def _delete_pod(self, verb: str, options: dict[str, int]) -> str:
        pods = [key for key, _ in self._cluster.storage.all(PODS)]
        if not pods:
            return ""
        key = self._chance.choice(pods)
        self._cluster.objects.delete(PODS, key, options)
        return f"{verb} pod {key.name}"

    def delete_domain(self) -> str:
        domains = [key for key, _ in self._cluster.storage.all(DOMAINS)]
        if not domains:
            return ""
        key = self._chance.choice(domains)
        self._cluster.objects.delete(DOMAINS, key, {})
        for pod, one in self._cluster.storage.all(PODS):
            if _domain_of(one) == key.name:
                self._cluster.objects.delete(PODS, pod, {})
        return f"delete ComputeDomain {key.name} and its pods"

    def release_domain(self) -> str:
        """While its pods run."""
        domains = [key for key, _ in self._cluster.storage.all(DOMAINS)]
        if not domains:
            return ""
        key = self._chance.choice(domains)
        self._cluster.objects.patch(DOMAINS, key, {"metadata": {"annotations": {"imex-dra.io/release": "now"}}})
        try:
            self._cluster.objects.delete(DOMAINS, key, {})
        except ApiError as error:
            return f"release {key.name}: {error}"
        for pod, one in self._cluster.storage.all(PODS):
            if _domain_of(one) == key.name:
                self._later(600.0, partial(self._delete_if_there, pod))
        return f"release ComputeDomain {key.name} at once"

    # Programs and nodes

    def kill_node_program(self) -> str:
        node = self._node()
        node.kill_program()
        self._later(120.0, lambda: self._cluster.restart_program(node))
        return f"kill imex node on {node.name}"

    def kill_node_program_at_file_operation(self) -> str:
        node, number = self._node(), self._chance.randrange(40)
        if node.program is None or not node.program.running:
            return ""
        node.program.kill_before_file_operation(number)
        self._later(600.0, lambda: self._restart_if_dead(node))
        return f"kill imex node on {node.name} before its next file operation number {number}"

    def kill_controller(self) -> str:
        number = self._chance.randrange(2)
        self._cluster.kill_controller(number)
        return f"kill controller {number}"

    def restart_daemon(self) -> str:
        node = self._node()
        if daemon := self._cluster.fabric.daemons.get(node.name):
            daemon.restart(self._cluster.loop.time())
        return f"restart nvidia-imex on {node.name}"

    def reboot(self) -> str:
        node = self._node()
        if not node.powered:
            return ""
        self._cluster.power_off(node)
        self._later(120.0, lambda: self._power_on(node))
        return f"reboot {node.name}"

    def power_off(self) -> str:
        node = self._node()
        if not node.powered:
            return ""
        self._cluster.power_off(node)
        self._later(4 * 3600.0, lambda: self._power_on(node))
        return f"power off {node.name}"

    def replace_node(self) -> str:
        """The operator deletes the Node of a machine that is off."""
        off = [node for node in self._cluster.nodes.values() if not node.powered]
        if not off:
            return ""
        node = self._chance.choice(off)
        self._delete_node(node)
        return f"delete Node {node.name}, which is off"

    # Network and hardware

    def cut_node_from_api(self) -> str:
        node = self._node()
        node.cut(cut=True)
        self._later(2400.0, lambda: self._reconnect(node))
        return f"cut {node.name} off from the API"

    def cut_nodes_apart(self) -> str:
        one, other = self._node().name, self._node().name
        if one == other:
            return ""
        pair = frozenset((one, other))
        self._cluster.fabric.cuts.add(pair)
        self._later(1200.0, lambda: self._uncut(pair))
        return f"cut {one} and {other} apart"

    def break_fabric(self) -> str:
        node = self._node()
        node.hardware.broken = "3 of 18 links are down"
        self._later(900.0, lambda: self._repair(node))
        return f"break the fabric of {node.name}"

    def reload_driver(self) -> str:
        node = self._node()
        node.hardware.major += 1
        return f"reload the GPU driver of {node.name}"

    def fail_requests(self) -> str:
        links = self._cluster.links()
        share = self._chance.choice((0.05, 0.3, 0.9))
        chosen = self._chance.sample(links, self._chance.randint(1, len(links)))
        for link in chosen:
            link.failures = share
            self._later(300.0, link.repair)
        return f"fail {share:.0%} of the requests of {len(chosen)} programs"

    def slow_requests(self) -> str:
        links = self._cluster.links()
        chosen = self._chance.sample(links, self._chance.randint(1, len(links)))
        for link in chosen:
            link.latency = 2.0
            self._later(300.0, link.repair)
        return f"slow down the requests of {len(chosen)} programs"

    # The API's data

    def compact(self) -> str:
        self._cluster.storage.compact()
        return "compact the history"

    def back_up_partition(self) -> str:
        for key, one in self._cluster.storage.all(PARTITIONS):
            self._backups[key.name] = one
        return "back up the partitions" if self._backups else ""

    def lose_partition(self) -> str:
        for key, _ in self._cluster.storage.all(PARTITIONS):
            with self._cluster.tampering(key.name):
                self._cluster.storage.remove(PARTITIONS, key)
            return f"lose NVLinkPartition {key.name}"
        return ""

    def restore_partition(self) -> str:
        """Only the object, not the whole etcd; its version is new."""
        for name, backup in self._backups.items():
            with self._cluster.tampering(name):
                self._cluster.storage.put(PARTITIONS, Key("", name), backup.document)
            return f"restore NVLinkPartition {name} to version {backup.version}"
        return ""

    # Ends of faults

    def _later(self, mean: float, undo: Callable[[], object]) -> None:
        """Undoes a fault after a random time, or when all faults are healed."""
        token = object()

        def run() -> None:
            if self._undo.pop(token, None) is not None:
                undo()

        self._undo[token] = run
        asyncio.get_running_loop().call_later(mean * (0.1 + 1.8 * self._chance.random()), run)

    def _node(self) -> SimulatedNode:
        return self._chance.choice(list(self._cluster.nodes.values()))

    def _power_on(self, node: SimulatedNode) -> None:
        if not node.powered:
            self._cluster.power_on(node)

    def _reconnect(self, node: SimulatedNode) -> None:
        node.cut(cut=False)
        self._cluster.kubelets[node.name].wake()

    def _repair(self, node: SimulatedNode) -> None:
        node.hardware.broken = ""

    def _uncut(self, pair: frozenset[str]) -> None:
        self._cluster.fabric.cuts.discard(pair)
        self._cluster.check()

    def _restart_if_dead(self, node: SimulatedNode) -> None:
        self._cluster.restart_program(node)

    def _delete_if_there(self, pod: Key) -> None:
        if self._cluster.storage.get(PODS, pod) is not None:
            self._cluster.objects.delete(PODS, pod, {})

    def _delete_node(self, node: SimulatedNode) -> None:
        if self._cluster.storage.get(NODES, Key("", node.name)) is not None:
            self._cluster.objects.delete(NODES, Key("", node.name), {})


def _domain_of(pod: Stored) -> str:
    name: str = pod.document["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    return name
