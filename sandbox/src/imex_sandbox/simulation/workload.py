"""What users, operators and bad luck do to a cluster: a list of steps, all drawn from the seed.

Every step draws its operation and all its choices from a generator of its own. So a step can be left out without
changing what the others want to do, which is what shortening a failure needs (`shrinking`).

Every fault ends by itself. `heal` ends all of them at once, so that the cluster can come to rest.
"""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.storage import Key, Stored
from imex_sandbox.simulation.cluster import USERS, SimulatedCluster
from imex_sandbox.simulation.kinds import DOMAINS, PARTITIONS
from imex_sandbox.simulation.machinefaults import MachineFaults
from imex_sandbox.simulation.servicefaults import ServiceFaults
from imex_sandbox.simulation.undos import Undos
from imex_sandbox.simulation.users import Users, domain_of


class Operation(NamedTuple):
    weight: int
    run: Callable[[random.Random], str]
    """Does it, and says what it did; empty if there was nothing to do."""


class Step(NamedTuple):
    number: int
    at: float


def plan_steps(seed: str, begin: float, end: float, mean_pause: float) -> list[Step]:
    chance, at, steps = random.Random(f"{seed}/steps"), begin, list[Step]()
    while (at := at + chance.expovariate(1 / mean_pause)) < end:
        steps.append(Step(len(steps), at))
    return steps


class Workload:
    def __init__(self, cluster: SimulatedCluster, seed: str, observe: Callable[[], None]) -> None:
        """`observe` is called before and after each fault begins, and before it ends."""
        self._cluster = cluster
        self._seed = seed
        self._observe = observe
        self._undos = Undos(observe)
        users = Users(cluster, self._undos)
        machines = MachineFaults(cluster, self._undos)
        services = ServiceFaults(cluster, self._undos)
        self._operations = [
            Operation(20, users.create_domain),
            Operation(40, users.create_pod),
            Operation(25, users.delete_pod),
            *self._weighted(
                Operation(20, users.run_short_job),
                Operation(10, users.cancel_starting_job),
                Operation(4, users.force_delete_pod),
                Operation(12, users.delete_domain),
                Operation(2, users.release_domain),
                Operation(8, services.kill_node_program),
                Operation(8, services.kill_node_program_at_file_operation),
                Operation(8, services.kill_node_program_at_step),
                Operation(5, services.update_node_program),
                Operation(4, services.hang_node_program),
                Operation(3, services.hang_node_program_at_step),
                Operation(5, services.kill_controller),
                Operation(3, services.kill_controller_at_step),
                Operation(2, services.hang_controller),
                Operation(5, services.hang_controller_at_step),
                Operation(4, services.restart_daemon),
                Operation(2, services.hang_daemon),
                Operation(3, services.break_ctl),
                Operation(5, services.fail_requests),
                Operation(3, services.slow_requests),
                Operation(4, services.delay_responses),
                Operation(5, services.lag_watches),
                Operation(1, services.stop_api),
                Operation(2, services.end_watches),
                Operation(2, services.compact),
                Operation(3, services.back_up_partitions),
                Operation(2, services.lose_partition),
                Operation(2, services.restore_partition),
                Operation(3, services.lose_last_writes),
                Operation(4, machines.reboot),
                Operation(3, machines.power_off),
                Operation(5, machines.cut_node_from_api),
                Operation(4, machines.cut_nodes_apart),
                Operation(4, machines.break_fabric),
                Operation(3, machines.reload_driver),
                Operation(5, machines.move_node),
                Operation(2, machines.replace_node),
                Operation(2, machines.fill_disk),
                Operation(3, machines.break_disk),
                Operation(1, machines.lose_checkpoint),
            ),
        ]
        self._weights = [operation.weight for operation in self._operations]

    def _weighted(self, *operations: Operation) -> list[Operation]:
        """Every seed prefers some faults and does without others: rare combinations become likely in some seed."""
        chance = random.Random(f"{self._seed}/weights")
        return [one._replace(weight=one.weight * chance.choice((0, 1, 1, 1, 4))) for one in operations]

    def run(self, step: Step) -> str:
        chance = random.Random(f"{self._seed}/{step.number}")
        (operation,) = chance.choices(self._operations, self._weights)
        self._observe()
        done = operation.run(chance)
        self._observe()
        return done

    def heal(self) -> None:
        cluster = self._cluster
        self._undos.run_all()
        for program in cluster.programs():
            program.disarm()
        for node in cluster.nodes.values():
            cluster.ensure_program(node)
        self.drain()

    def drain(self) -> None:
        """Ends what would never end by itself: pods without a ComputeDomain, pods on a node that has moved, and
        pods that a partition asks to delete.
        """
        cluster = self._cluster
        ended = {
            one.pod for one in cluster.processes() if one.partition != cluster.nodes[one.node].hardware.partition
        }
        named = {name for _, partition in cluster.storage.all(PARTITIONS) for name in _pods_to_delete(partition)}
        for key, one in cluster.storage.all(PODS):
            domain = cluster.storage.get(DOMAINS, Key(USERS, domain_of(one)))
            leaves = domain is None or domain.document["metadata"].get("deletionTimestamp")
            if leaves or one.document["metadata"]["uid"] in ended or f"{key.namespace}/{key.name}" in named:
                cluster.objects.delete(PODS, key, {})


def _pods_to_delete(partition: Stored) -> set[str]:
    """As a user reads it in the condition."""
    conditions = partition.document.get("status", {}).get("conditions", ())
    messages = [one["message"] for one in conditions if (one["status"], one["reason"]) == ("False", "DrainFirst")]
    return {
        pod
        for message in messages
        for pods in re.findall(r"pods ([^()]+) \(", message)
        for pod in pods.split(", ")
    }
