"""The life of a partition against a model: machines, what their cards say, and what every daemon believes.

Machines die, move to other partitions and come back; cards lag behind, vanish and return; daemons apply member
lists late. After each decision of the controller no daemon of a member may take a slot for another node's than
the list does.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.controller.membership import Roster, plan_members
from tests.controller.partition import ELSEWHERE, HERE, card

SLOTS = 4
NODES = st.sampled_from("abcdef")
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", ""])


@dataclass
class Daemon:
    slot: int
    generation: int
    owners: dict[int, str]
    """Which node it takes each slot for."""


@dataclass
class Machine:
    address: str
    partition: str = HERE
    fabric: FabricState = FabricState.OK
    daemon: Daemon | None = None


@dataclass
class World:
    machines: dict[str, Machine] = field(default_factory=dict)
    cards: dict[str, NVLinkNode] = field(default_factory=dict)
    roster: Roster = field(default_factory=lambda: Roster((), 0))

    def staying(self) -> dict[str, Member]:
        return {m.node: m for m in self.roster.members if m.state is not MemberState.LEAVING}

    def mapping(self) -> dict[int, str]:
        return {m.slot: m.address for m in self.staying().values()}

    def publish(self, node: str) -> None:
        machine = self.machines[node]
        daemon = machine.daemon
        self.cards[node] = card(
            node,
            partition=machine.partition if machine.fabric is FabricState.OK else "",
            fabric=machine.fabric,
            address=machine.address,
            slot=daemon.slot if daemon else -1,
            state=ImexState.READY if daemon else ImexState.UNAVAILABLE,
            applied=daemon.generation if daemon else 0,
        )

    def apply(self, node: str) -> None:
        member = self.staying().get(node)
        if member is not None and self.machines[node].partition == HERE:
            owners = {m.slot: m.node for m in self.staying().values()}
            self.machines[node].daemon = Daemon(member.slot, self.roster.generation, owners)

    def plan(self) -> Roster:
        return plan_members(HERE, self.roster, slots=SLOTS, cards=self.cards, nodes=self.machines.keys())

    def reconcile(self) -> None:
        self.roster = self.plan()


class PartitionMachine(RuleBasedStateMachine):
    @initialize(nodes=st.sets(NODES, max_size=3))
    def start(self, nodes: set[str]) -> None:
        self.world = World(machines={node: Machine(f"10.0.0.{node}") for node in nodes})
        self.everybody_catches_up()

    @rule(node=NODES, address=ADDRESSES)
    def a_machine_comes(self, node: str, address: str) -> None:
        self.world.machines.setdefault(node, Machine(address))
        self.world.publish(node)

    @rule(node=NODES)
    def a_machine_is_gone_for_good(self, node: str) -> None:
        self.world.machines.pop(node, None)

    @rule(old=NODES, new=NODES)
    def a_machine_is_replaced(self, old: str, new: str) -> None:
        self.a_machine_is_gone_for_good(old)
        self.the_controller_decides()
        self.a_machine_comes(new, f"10.0.0.{new}")
        self.the_controller_decides()

    @rule(node=NODES)
    def a_card_vanishes(self, node: str) -> None:
        self.world.cards.pop(node, None)

    @rule(node=NODES)
    def a_daemon_dies(self, node: str) -> None:
        if machine := self.world.machines.get(node):
            machine.daemon = None

    @rule(node=NODES, address=ADDRESSES, fabric=st.sampled_from(FabricState))
    def a_machine_changes(self, node: str, address: str, fabric: FabricState) -> None:
        if machine := self.world.machines.get(node):
            machine.address, machine.fabric = address, fabric

    @rule(node=NODES, partition=st.sampled_from([HERE, ELSEWHERE]))
    def a_clique_changes(self, node: str, partition: str) -> None:
        machine = self.world.machines.get(node)
        if machine and machine.partition != partition:
            machine.partition, machine.daemon = partition, None

    @rule(nodes=st.sets(NODES))
    def cards_are_written(self, nodes: set[str]) -> None:
        for node in nodes & self.world.machines.keys():
            self.world.publish(node)

    @rule(nodes=st.sets(NODES))
    def daemons_apply_the_list(self, nodes: set[str]) -> None:
        for node in nodes & self.world.machines.keys():
            self.world.apply(node)

    @rule()
    def the_controller_decides(self) -> None:
        world = self.world
        before, mapping = world.roster, world.mapping()
        staying = world.staying()
        world.reconcile()
        assert world.plan() == world.roster, "deciding again on the same facts decides otherwise"
        changed = world.mapping() != mapping
        assert world.roster.generation == before.generation + changed
        for node in staying.keys() - world.staying().keys():
            moved = node in world.cards and world.cards[node].status.partition == ELSEWHERE
            assert node not in world.machines or moved, f"{node} left without evidence"
        for node, member in world.staying().items():
            if node in staying:
                assert member.slot == staying[node].slot, f"{node} was moved"

    @rule()
    def everybody_catches_up(self) -> None:
        """Nothing is stuck: once all cards are true and all daemons current, everybody has what is due."""
        world = self.world
        for _ in range(4):
            for node in sorted(world.machines):
                world.apply(node)
                world.publish(node)
            world.reconcile()
        if not self.silent():
            assert not [m for m in world.roster.members if m.state is MemberState.LEAVING]
        belonging = {
            node
            for node, machine in world.machines.items()
            if machine.partition == HERE and machine.fabric is FabricState.OK and machine.address
        }
        assert belonging <= world.staying().keys() | set(world.roster.homeless)
        for node in belonging - set(world.roster.homeless):
            assert world.staying()[node].state is MemberState.READY
            assert world.staying()[node].address == world.machines[node].address

    def silent(self) -> set[str]:
        """Members that did not leave, as far as is known, and whose daemon does not run with the latest list."""
        world = self.world
        daemons = {node: world.machines[node].daemon for node in world.staying()}
        return {node for node, d in daemons.items() if d is None or d.generation < world.roster.generation}

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        slots = [member.slot for member in self.world.roster.members]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < SLOTS for slot in slots)
        assert len(self.world.roster.members) == len({member.node for member in self.world.roster.members})
        if self.world.roster.homeless:
            assert len(slots) == SLOTS

    @invariant()
    def no_daemon_takes_a_slot_for_another_nodes(self) -> None:
        owners = {m.slot: m.node for m in self.world.staying().values()}
        for node in self.world.staying().keys() & self.world.machines.keys():
            daemon = self.world.machines[node].daemon
            if daemon is not None:
                for slot, owner in daemon.owners.items():
                    assert owners.get(slot, owner) == owner, f"{node} takes slot {slot} for {owner}'s"


TestPartitionLife = PartitionMachine.TestCase
TestPartitionLife.settings = settings(max_examples=200, stateful_step_count=25)
