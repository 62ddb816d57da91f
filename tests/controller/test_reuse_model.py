"""Channel reuse against a model in which everything goes wrong: docs/design/channel-reuse.md.

Nodes crash, reboot, move, are cut off from the API server and from each other, are suspended, watch outdated
partitions, run two programs at once, and lose their NVLinkNodes, Node objects and checkpoints. Controllers lag and
replace each other. Partitions are lost and restored. The invariant: no two ComputeDomains whose processes may be
alive have the same channel in one IMEX domain.

`make test` takes the same walks every time. `make explore WALKS=500` takes new ones, and prints how to repeat a
walk that fails.
"""

import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinkpartition import ChannelState
from imex_dra.controller.epochs import PATIENCE
from imex_dra.controller.settings import DEFAULTS
from tests.controller.partition import ELSEWHERE, HERE
from tests.controller.reusemodel import LEADER, Machine, Model, NodeProgram

pytestmark = pytest.mark.timeout(0 if os.environ.get("IMEX_WALKS") else 400)

EVENTS = {
    # Users and schedulers
    "a_domain_is_deleted": 2,
    "a_domain_is_created_and_pods_are_bound": 6,
    "a_pod_of_a_new_domain_runs": 4,
    "bound_pods_start": 6,
    "a_node_is_deleted_for_a_while": 3,
    "a_prepare_commits_late": 4,
    "a_process_ends": 3,
    "all_processes_end": 1,
    "channels_are_reusable_after_all_processes_end": 1,
    # Node programs, each at its own pace
    "a_node_program_works": 6,
    "a_program_watches": 2,
    "a_prepare_decides": 8,
    "a_prepare_of_any_domain_decides": 4,
    "a_prepare_commits": 4,
    "a_report_is_made": 2,
    "a_report_is_written": 2,
    "a_member_list_is_sent": 2,
    # Controllers
    "a_controller_works": 6,
    "a_controller_syncs": 2,
    "a_controller_reconciles_an_old_view": 2,
    "a_domain_status_is_written": 2,
    "everything_settles": 3,
    "the_leader_is_replaced": 1,
    "time_passes": 2,
    # Faults
    "a_node_is_not_ready": 1,
    "a_node_is_cut_off": 2,
    "a_node_is_suspended": 3,
    "a_network_breaks": 1,
    "a_node_is_forgotten": 2,
    "nodes_are_reachable_again": 3,
    "a_program_is_replaced": 1,
    "a_second_program_starts": 2,
    "the_first_program_stops": 1,
    "a_machine_reboots": 1,
    "a_machine_moves": 4,
    "a_daemon_dies": 1,
    "a_supervisor_starts_its_daemon_again": 1,
    "a_node_object_is_deleted": 2,
    "deleted_nodes_return": 3,
    "an_nvlink_node_is_deleted": 1,
    "a_checkpoint_is_corrupted": 2,
    "a_partition_is_lost": 2,
    "a_partition_is_restored": 1,
}
"""With weights. One rule draws from them all: hypothesis disables some rules in each run, if there are several."""

WEIGHTED = [event for event, weight in EVENTS.items() for _ in range(weight)]


class ReuseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="imex-"))

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(channels=st.sampled_from([2, 2, 3]), third=st.sampled_from([HERE, ELSEWHERE]))
    def start(self, channels: int, third: PartitionId = ELSEWHERE) -> None:
        """With few channels, so that they must be reused soon."""
        self.channels = channels
        self.model = Model(self.root, {"a": HERE, "b": HERE, "c": third, "d": ELSEWHERE}, channels)
        self.settle(3)

    @rule(event=st.sampled_from(WEIGHTED), node=st.sampled_from("abcd"), number=st.integers(0, 30))
    def an_event_happens(self, event: str, node: str, number: int) -> None:
        getattr(self, event)(self.model.machines[node], number)

    def channels_are_reusable_after_all_processes_end(self, machine: Machine, number: int) -> None:
        """Nothing is stuck: if all nodes are up and no process runs, every demand is met."""
        for found in self.model.machines.values():
            found.has_node = True
            self.all_processes_end(found, number)
        self.nodes_are_reachable_again(machine, number)
        self.settle(10)
        for name, partition in self.model.partitions.items():
            here = {found.name for found in self.model.machines.values() if found.partition_id == name}
            demand = {uid for uid, node in self.model.claims if node in here}
            entries = partition.status.channels if partition else ()
            served = {e.compute_domain.uid for e in entries if e.state is ChannelState.ASSIGNED}
            assert len(demand & served) >= min(len(demand), self.channels - 1 - len(served - demand)), partition

    @invariant()
    def no_two_domains_share_a_channel(self) -> None:
        assert self.model.leaks() == []

    @invariant()
    def no_channel_and_no_domain_is_listed_twice(self) -> None:
        for partition in self.model.partitions.values():
            entries = partition.status.channels if partition else ()
            numbers = [entry.channel for entry in entries]
            holders = [e.compute_domain.uid for e in entries if e.state is ChannelState.ASSIGNED]
            assert len(numbers) == len(set(numbers))
            assert len(holders) == len(set(holders))

    def pick(self, things: Any, number: int) -> Any:
        ordered = sorted(things)
        return ordered[number % len(ordered)] if ordered else None

    def program(self, machine: Machine, number: int) -> NodeProgram:
        return machine.programs[number % len(machine.programs)]

    def partition(self, number: int) -> PartitionId:
        return (HERE, ELSEWHERE)[number % 2]

    def settle(self, rounds: int) -> None:
        """All programs see all objects and act on them; no process ends."""
        for _ in range(rounds):
            for machine in self.model.machines.values():
                self.a_node_program_works(machine, 0)
            self.a_controller_works(machine, 0)

    # Users and schedulers

    def a_domain_is_deleted(self, machine: Machine, number: int) -> None:
        if uid := self.pick(self.model.domains, number):
            self.model.delete_domain(uid)

    def a_domain_is_created_and_pods_are_bound(self, machine: Machine, number: int) -> None:
        """If there are many already, one of them is deleted; its processes keep running."""
        if len(self.model.domains) >= self.channels - 1:
            self.a_domain_is_deleted(machine, number)
        uid = self.model.create_domain()
        self.model.claims |= {(uid, machine.name), (uid, self.pick(self.model.machines, number))}

    def a_pod_of_a_new_domain_runs(self, machine: Machine, number: int) -> None:
        """Without any fault in between."""
        if len(self.model.domains) < self.channels:
            uid = self.model.create_domain()
            self.model.claims.add((uid, machine.name))
            self.settle(1)
            self.start_pod(machine, machine.programs[0], uid)

    def bound_pods_start(self, machine: Machine, number: int) -> None:
        for uid, node in sorted(self.model.claims):
            found = self.model.machines[node]
            self.start_pod(found, self.program(found, number), uid)

    def start_pod(self, machine: Machine, program: NodeProgram, uid: str) -> None:
        """From decision to commit; other uncommitted prepares stay as they are."""
        self.model.watch(machine, program)
        waiting = len(program.prepares)
        self.model.begin_prepare(machine, program, uid)
        if len(program.prepares) > waiting:
            self.model.commit_prepare(machine, program, waiting)

    def a_process_ends(self, machine: Machine, number: int) -> None:
        if claim := self.pick(machine.processes, number):
            self.model.end_process(machine, claim)

    def all_processes_end(self, machine: Machine, number: int) -> None:
        for claim in list(machine.processes):
            self.model.end_process(machine, claim)

    def a_node_is_deleted_for_a_while(self, machine: Machine, number: int) -> None:
        """And returns as it was."""
        self.a_node_object_is_deleted(machine, number)
        self.settle(3)
        self.a_domain_is_created_and_pods_are_bound(self.another(machine), number)
        self.settle(3)
        self.bound_pods_start(machine, number)
        machine.has_node = True
        self.settle(number % 4)

    def a_prepare_commits_late(self, machine: Machine, number: int) -> None:
        """Its ComputeDomain is gone; its node may have moved or lost its checkpoint; others have worked since."""
        program = self.program(machine, number)
        for uid in sorted({uid for uid, node in self.model.claims if node == machine.name}):
            self.model.watch(machine, program)
            self.model.begin_prepare(machine, program, uid)
        if number % 3 == 0:
            self.a_machine_moves(machine, number // 3)
        self.a_domain_is_created_and_pods_are_bound(self.another(machine), number)
        self.settle(3)
        if number % 4 == 0:
            self.a_checkpoint_is_corrupted(machine, number)
        self.bound_pods_start(machine, number)
        while program.prepares:
            self.model.commit_prepare(machine, program, 0)

    def another(self, machine: Machine) -> Machine:
        """One in the same partition, if there is one."""
        others = [m for m in self.model.machines.values() if m is not machine]
        return next((m for m in others if m.partition_id == machine.partition_id), others[0])

    # Node programs, each at its own pace

    def a_node_program_works(self, machine: Machine, number: int) -> None:
        program = machine.programs[0]
        self.model.watch(machine, program)
        self.model.send_member_list(machine, program)
        self.model.begin_report(machine, program)
        self.model.write_report(machine, program)

    def a_program_watches(self, machine: Machine, number: int) -> None:
        self.model.watch(machine, self.program(machine, number))

    def a_prepare_decides(self, machine: Machine, number: int) -> None:
        program = self.program(machine, number)
        if (uid := self.pick(self.model.domains, number)) and len(program.prepares) < 2:
            self.model.begin_prepare(machine, program, uid)

    def a_prepare_of_any_domain_decides(self, machine: Machine, number: int) -> None:
        """Also for a claim whose ComputeDomain is deleted: an outdated watch may still show its channel."""
        program = self.program(machine, number)
        created = self.model.created
        if created and len(program.prepares) < 2:
            self.model.begin_prepare(machine, program, created[-1 - number % len(created)])

    def a_prepare_commits(self, machine: Machine, number: int) -> None:
        program = self.program(machine, number)
        if program.prepares:
            self.model.commit_prepare(machine, program, 0)

    def a_report_is_made(self, machine: Machine, number: int) -> None:
        self.model.begin_report(machine, machine.programs[0])

    def a_report_is_written(self, machine: Machine, number: int) -> None:
        self.model.write_report(machine, machine.programs[0])

    def a_member_list_is_sent(self, machine: Machine, number: int) -> None:
        self.model.send_member_list(machine, machine.programs[0])

    # Controllers

    def a_controller_works(self, machine: Machine, number: int) -> None:
        for name in (HERE, ELSEWHERE) * (1 + number % 3):
            self.model.reconcile(self.model.current_view(), name)
        self.model.label_nodes()

    def a_controller_syncs(self, machine: Machine, number: int) -> None:
        self.model.views[number % 2] = self.model.current_view()

    def a_controller_reconciles_an_old_view(self, machine: Machine, number: int) -> None:
        which = number // 2 % 2
        self.model.reconcile(self.model.views[which], self.partition(number), which)

    def a_domain_status_is_written(self, machine: Machine, number: int) -> None:
        if uid := self.pick(self.model.domains, number):
            self.model.write_domain_status(uid)

    def everything_settles(self, machine: Machine, number: int) -> None:
        self.settle(1 + number % 3)

    def the_leader_is_replaced(self, machine: Machine, number: int) -> None:
        self.model.known[LEADER] = {}

    def time_passes(self, machine: Machine, number: int) -> None:
        """Long enough for a release to be asked about, or also for a member to be suspended."""
        self.model.now += timedelta(seconds=PATIENCE if number % 2 else DEFAULTS.suspend_after)

    # Faults

    def a_node_is_not_ready(self, machine: Machine, number: int) -> None:
        """Its kubelet is down; everything else works."""
        machine.is_ready = False

    def a_node_is_cut_off(self, machine: Machine, number: int) -> None:
        """From the API server, and maybe from the other nodes; its processes run on."""
        machine.is_ready, machine.has_api, machine.is_isolated = False, False, number % 3 > 0

    def a_node_is_suspended(self, machine: Machine, number: int) -> None:
        """While it is, the others work; it returns as it was, or stays away."""
        machine.is_ready, machine.has_api, machine.is_isolated = False, False, True
        self.settle(3)
        self.model.now += timedelta(seconds=DEFAULTS.suspend_after)
        self.settle(2)
        for _ in range(1 + number % 3):
            self.a_domain_is_created_and_pods_are_bound(self.another(machine), number)
            self.settle(2)
            self.bound_pods_start(machine, number)
        if number % 4:
            self.nodes_are_reachable_again(machine, number)
            self.settle(number % 3)

    def a_node_is_forgotten(self, machine: Machine, number: int) -> None:
        """Although it is still powered on."""
        if not machine.is_ready:
            self.model.forget_node(machine)
            self.settle(number % 4)

    def a_network_breaks(self, machine: Machine, number: int) -> None:
        machine.is_isolated = True

    def nodes_are_reachable_again(self, machine: Machine, number: int) -> None:
        for found in self.model.machines.values():
            found.is_ready, found.has_api, found.is_isolated = True, True, False

    def a_program_is_replaced(self, machine: Machine, number: int) -> None:
        machine.programs[0] = NodeProgram()

    def a_second_program_starts(self, machine: Machine, number: int) -> None:
        if len(machine.programs) < 2:
            machine.programs.append(NodeProgram())

    def the_first_program_stops(self, machine: Machine, number: int) -> None:
        if len(machine.programs) > 1:
            machine.programs.pop(0)

    def a_machine_reboots(self, machine: Machine, number: int) -> None:
        machine.boot += 1
        machine.processes.clear()
        machine.daemon = machine.files = None
        machine.programs = [NodeProgram()]

    def a_machine_moves(self, machine: Machine, number: int) -> None:
        machine.partition_id = self.partition(number)

    def a_daemon_dies(self, machine: Machine, number: int) -> None:
        machine.daemon = None

    def a_supervisor_starts_its_daemon_again(self, machine: Machine, number: int) -> None:
        machine.daemon = machine.files

    def a_node_object_is_deleted(self, machine: Machine, number: int) -> None:
        self.an_nvlink_node_is_deleted(machine, number)
        machine.has_node, machine.label = False, ""
        self.model.claims = {claim for claim in self.model.claims if claim[1] != machine.name}

    def deleted_nodes_return(self, machine: Machine, number: int) -> None:
        for found in self.model.machines.values():
            found.has_node = True

    def an_nvlink_node_is_deleted(self, machine: Machine, number: int) -> None:
        machine.nvlink_node = None
        machine.version += 1

    def a_checkpoint_is_corrupted(self, machine: Machine, number: int) -> None:
        machine.prepared.read()
        machine.checkpoint.write_bytes(b"corrupted")

    def a_partition_is_lost(self, machine: Machine, number: int) -> None:
        self.model.label_nodes()
        self.model.partitions[self.partition(number)] = None
        self.model.forgotten[self.partition(number)] = set()

    def a_partition_is_restored(self, machine: Machine, number: int) -> None:
        """To a state that NVLinkNodes prove to be old, and a controller reads them before they are gone."""
        name = self.partition(number)
        history = self.model.history[name]
        old = history[number % len(history)] if history else None
        if old is not None and self.model.is_provably_old(name, old):
            self.model.put(name, old)
            self.model.reconcile(self.model.current_view(), name)


WALKS = os.environ.get("IMEX_WALKS", "")

TestReuse = ReuseMachine.TestCase
TestReuse.settings = settings(
    max_examples=int(WALKS or 40),
    stateful_step_count=60,
    derandomize=not WALKS,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
