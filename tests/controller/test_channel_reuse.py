"""Channels are used again, and never by two: the whole protocol against a world where everything goes wrong.

Nodes crash, reboot, move, lag behind with old partitions, run two programs at once and lose their cards, their
Node objects and their checkpoints; controllers lag behind and replace each other; records are lost and restored.
The one invariant: no two ComputeDomains whose processes may live are on one channel of one IMEX domain.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinkpartition import ChannelState
from tests.controller.partition import ELSEWHERE, HERE
from tests.controller.reuse import Machine, Program, World

pytestmark = pytest.mark.timeout(400)

DEEDS = {
    # What people and schedulers do
    "a_domain_goes": 2,
    "a_domain_comes_and_pods_are_bound": 6,
    "a_pod_of_a_new_domain_runs": 4,
    "bound_pods_start_if_they_can": 6,
    "a_node_is_away_while_others_work": 3,
    "a_grant_arrives_late": 4,
    "a_process_ends": 3,
    "all_processes_end": 1,
    "when_all_processes_have_ended_numbers_are_free_again": 1,
    # What node programs do, each at its own pace
    "a_node_catches_up": 6,
    "a_program_sees_its_partition": 2,
    "a_prepare_gets_its_grant": 8,
    "a_prepare_enters_its_grant": 4,
    "a_card_is_made": 2,
    "a_card_is_written": 2,
    "a_daemon_is_told": 2,
    # What controllers do
    "a_controller_works": 6,
    "a_controller_sees": 2,
    "a_controller_decides": 2,
    "a_domain_is_told_its_channels": 2,
    "everybody_catches_up": 3,
    # What goes wrong
    "a_program_is_replaced": 1,
    "a_second_program_comes": 2,
    "the_first_program_goes": 1,
    "a_machine_reboots": 1,
    "a_machine_moves": 4,
    "a_daemon_dies": 1,
    "a_daemon_starts_from_its_memory": 1,
    "a_node_object_is_deleted": 2,
    "a_node_object_is_there_again": 3,
    "a_card_is_deleted": 1,
    "a_checkpoint_is_spoilt": 2,
    "a_record_is_lost": 2,
    "a_record_is_restored": 1,
}
"""With their weights. One rule draws from them all: of many rules hypothesis would leave some out in each run."""

WEIGHTED = [deed for deed, weight in DEEDS.items() for _ in range(weight)]


class ReuseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="imex-"))

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(channels=st.sampled_from([2, 2, 3]))
    def start(self, channels: int) -> None:
        """With few channels, so that they have to be used again soon."""
        self.channels = channels
        self.world = World(self.root, {"a": HERE, "b": HERE, "c": ELSEWHERE, "d": ELSEWHERE}, channels)
        self.settle(3)

    @rule(deed=st.sampled_from(WEIGHTED), node=st.sampled_from("abcd"), number=st.integers(0, 30))
    def something_happens(self, deed: str, node: str, number: int) -> None:
        getattr(self, deed)(self.world.machines[node], number)

    def when_all_processes_have_ended_numbers_are_free_again(self, machine: Machine, number: int) -> None:
        """Nothing is stuck: with everybody there and nobody at work, whoever asks gets a channel."""
        for found in self.world.machines.values():
            found.exists = True
            self.all_processes_end(found, number)
        self.settle(8)
        for name, record in self.world.records.items():
            here = {found.name for found in self.world.machines.values() if found.place == name}
            asking = {uid for uid, node in self.world.claims if node in here}
            entries = record.status.channels if record else ()
            served = {e.compute_domain.uid for e in entries if e.state is ChannelState.ASSIGNED}
            assert len(asking & served) >= min(len(asking), self.channels - 1 - len(served - asking)), record

    @invariant()
    def nobody_shares_a_channel_with_a_stranger(self) -> None:
        assert self.world.leaks() == []

    @invariant()
    def no_number_and_no_domain_is_listed_twice(self) -> None:
        for record in self.world.records.values():
            entries = record.status.channels if record else ()
            numbers = [entry.channel for entry in entries]
            holders = [e.compute_domain.uid for e in entries if e.state is ChannelState.ASSIGNED]
            assert len(numbers) == len(set(numbers))
            assert len(holders) == len(set(holders))

    def pick(self, things: Any, number: int) -> Any:
        ordered = sorted(things)
        return ordered[number % len(ordered)] if ordered else None

    def program(self, machine: Machine, number: int) -> Program:
        return machine.programs[number % len(machine.programs)]

    def partition(self, number: int) -> PartitionId:
        return (HERE, ELSEWHERE)[number % 2]

    def settle(self, rounds: int) -> None:
        """Everybody sees everything, and does what is to be done; nobody ends a process."""
        for _ in range(rounds):
            for machine in self.world.machines.values():
                self.a_node_catches_up(machine, 0)
            self.a_controller_works(machine, 0)

    # What people and schedulers do

    def a_domain_goes(self, machine: Machine, number: int) -> None:
        if uid := self.pick(self.world.domains, number):
            self.world.delete_domain(uid)

    def a_domain_comes_and_pods_are_bound(self, machine: Machine, number: int) -> None:
        """If there are many already, one of them goes; its processes stay."""
        if len(self.world.domains) >= self.channels - 1:
            self.a_domain_goes(machine, number)
        uid = self.world.add_domain()
        self.world.claims |= {(uid, machine.name), (uid, self.pick(self.world.machines, number))}

    def a_pod_of_a_new_domain_runs(self, machine: Machine, number: int) -> None:
        """All is well for once."""
        if len(self.world.domains) < self.channels:
            uid = self.world.add_domain()
            self.world.claims.add((uid, machine.name))
            self.settle(1)
            self.start_pod(machine, machine.programs[0], uid)

    def bound_pods_start_if_they_can(self, machine: Machine, number: int) -> None:
        for uid, node in sorted(self.world.claims):
            found = self.world.machines[node]
            self.start_pod(found, self.program(found, number), uid)

    def start_pod(self, machine: Machine, program: Program, uid: str) -> None:
        """From beginning to end; what other prepares are about to do stays undone."""
        self.world.watch(machine, program)
        waiting = len(program.pending)
        self.world.begin(machine, program, uid)
        if len(program.pending) > waiting:
            self.world.commit(machine, program, waiting)

    def a_process_ends(self, machine: Machine, number: int) -> None:
        if claim := self.pick(machine.processes, number):
            self.world.end(machine, claim)

    def all_processes_end(self, machine: Machine, number: int) -> None:
        for claim in list(machine.processes):
            self.world.end(machine, claim)

    def a_node_is_away_while_others_work(self, machine: Machine, number: int) -> None:
        """And comes back as it was."""
        self.a_node_object_is_deleted(machine, number)
        self.settle(3)
        self.a_domain_comes_and_pods_are_bound(self.another(machine), number)
        self.settle(3)
        self.bound_pods_start_if_they_can(machine, number)
        machine.exists = True
        self.settle(number % 4)

    def a_grant_arrives_late(self, machine: Machine, number: int) -> None:
        """Its ComputeDomain is gone, its node maybe elsewhere or without a memory, and others work."""
        program = self.program(machine, number)
        for uid in sorted({uid for uid, node in self.world.claims if node == machine.name}):
            self.world.watch(machine, program)
            self.world.begin(machine, program, uid)
        if number % 3 == 0:
            self.a_machine_moves(machine, number // 3)
        self.a_domain_comes_and_pods_are_bound(self.another(machine), number)
        self.settle(3)
        if number % 4 == 0:
            self.a_checkpoint_is_spoilt(machine, number)
        self.bound_pods_start_if_they_can(machine, number)
        while program.pending:
            self.world.commit(machine, program, 0)

    def another(self, machine: Machine) -> Machine:
        """One that is in the same place, if there is one."""
        others = [m for m in self.world.machines.values() if m is not machine]
        return next((m for m in others if m.place == machine.place), others[0])

    # What node programs do, each at its own pace

    def a_node_catches_up(self, machine: Machine, number: int) -> None:
        program = machine.programs[0]
        self.world.watch(machine, program)
        self.world.tell(machine, program)
        self.world.answer(machine, program)
        self.world.publish(machine, program)

    def a_program_sees_its_partition(self, machine: Machine, number: int) -> None:
        self.world.watch(machine, self.program(machine, number))

    def a_prepare_gets_its_grant(self, machine: Machine, number: int) -> None:
        program = self.program(machine, number)
        if (uid := self.pick(self.world.domains, number)) and len(program.pending) < 2:
            self.world.begin(machine, program, uid)

    def a_prepare_enters_its_grant(self, machine: Machine, number: int) -> None:
        program = self.program(machine, number)
        if program.pending:
            self.world.commit(machine, program, 0)

    def a_card_is_made(self, machine: Machine, number: int) -> None:
        self.world.answer(machine, machine.programs[0])

    def a_card_is_written(self, machine: Machine, number: int) -> None:
        self.world.publish(machine, machine.programs[0])

    def a_daemon_is_told(self, machine: Machine, number: int) -> None:
        self.world.tell(machine, machine.programs[0])

    # What controllers do

    def a_controller_works(self, machine: Machine, number: int) -> None:
        for name in (HERE, ELSEWHERE) * (1 + number % 3):
            self.world.write(self.world.look(), name)
        self.world.label()

    def a_controller_sees(self, machine: Machine, number: int) -> None:
        self.world.views[number % 2] = self.world.look()

    def a_controller_decides(self, machine: Machine, number: int) -> None:
        self.world.write(self.world.views[number // 2 % 2], self.partition(number))

    def a_domain_is_told_its_channels(self, machine: Machine, number: int) -> None:
        if uid := self.pick(self.world.domains, number):
            self.world.say_channels(uid)

    def everybody_catches_up(self, machine: Machine, number: int) -> None:
        self.settle(1 + number % 3)

    # What goes wrong

    def a_program_is_replaced(self, machine: Machine, number: int) -> None:
        machine.programs[0] = Program()

    def a_second_program_comes(self, machine: Machine, number: int) -> None:
        if len(machine.programs) < 2:
            machine.programs.append(Program())

    def the_first_program_goes(self, machine: Machine, number: int) -> None:
        if len(machine.programs) > 1:
            machine.programs.pop(0)

    def a_machine_reboots(self, machine: Machine, number: int) -> None:
        machine.boot += 1
        machine.processes.clear()
        machine.daemon, machine.programs = None, [Program()]

    def a_machine_moves(self, machine: Machine, number: int) -> None:
        machine.place = self.partition(number)

    def a_daemon_dies(self, machine: Machine, number: int) -> None:
        machine.daemon = None

    def a_daemon_starts_from_its_memory(self, machine: Machine, number: int) -> None:
        machine.daemon = machine.memory

    def a_node_object_is_deleted(self, machine: Machine, number: int) -> None:
        self.a_card_is_deleted(machine, number)
        machine.exists, machine.label = False, ""
        self.world.claims = {claim for claim in self.world.claims if claim[1] != machine.name}

    def a_node_object_is_there_again(self, machine: Machine, number: int) -> None:
        for found in self.world.machines.values():
            found.exists = True

    def a_card_is_deleted(self, machine: Machine, number: int) -> None:
        machine.card = None
        machine.version += 1

    def a_checkpoint_is_spoilt(self, machine: Machine, number: int) -> None:
        machine.ledger.read()
        machine.checkpoint.write_bytes(b"spoilt")

    def a_record_is_lost(self, machine: Machine, number: int) -> None:
        self.world.label()
        self.world.records[self.partition(number)] = None

    def a_record_is_restored(self, machine: Machine, number: int) -> None:
        """To one that the cards prove to be old, and a controller sees that before the cards are gone."""
        name = self.partition(number)
        history = self.world.history[name]
        old = history[number % len(history)] if history else None
        if old is not None and self.world.is_provably_old(name, old):
            self.world.put(name, old)
            self.world.write(self.world.look(), name)


TestReuse = ReuseMachine.TestCase
TestReuse.settings = settings(
    max_examples=40, stateful_step_count=60, derandomize=True, suppress_health_check=list(HealthCheck)
)
"""The same walks every time: what a thousand others find is for who looks for it, not for who lands next."""
