"""Membership against a model: machines, their NVLinkNodes, and the member list that each daemon has applied.

Machines fail, move to other partitions and return; NVLinkNodes are outdated, vanish and return; daemons apply
member lists late. After each plan, no daemon of a member may assign an index to another node than the member
list does.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.controller.liveness import Liveness
from imex_dra.controller.membership import MemberInputs, MemberPlan, plan_members
from tests.controller.partition import ELSEWHERE, HERE, NOW, nvlink_node

MAX_NODES = 4
NODES = st.sampled_from("abcdef")
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", ""])


@dataclass
class Daemon:
    index: int
    generation: int
    owners: dict[int, str]
    """By index: the node in the member list that the daemon applied."""


@dataclass
class Machine:
    address: str
    partition: str = HERE
    fabric: FabricState = FabricState.OK
    daemon: Daemon | None = None


@dataclass
class Model:
    machines: dict[str, Machine] = field(default_factory=dict)
    nvlink_nodes: dict[str, NVLinkNode] = field(default_factory=dict)
    plan: MemberPlan = field(default_factory=lambda: MemberPlan((), 0))

    def staying(self) -> dict[str, Member]:
        return {m.node: m for m in self.plan.members if m.state is not MemberState.LEAVING}

    def addresses(self) -> dict[int, str]:
        return {m.index: m.address for m in self.staying().values()}

    def publish(self, node: str) -> None:
        machine = self.machines[node]
        daemon = machine.daemon
        self.nvlink_nodes[node] = nvlink_node(
            node,
            partition=machine.partition if machine.fabric is FabricState.OK else "",
            fabric=machine.fabric,
            address=machine.address,
            index=daemon.index if daemon else -1,
            state=ImexState.READY if daemon else ImexState.UNAVAILABLE,
            applied=daemon.generation if daemon else 0,
        )

    def apply(self, node: str) -> None:
        member = self.staying().get(node)
        if member is not None and self.machines[node].partition == HERE:
            owners = {m.index: m.node for m in self.staying().values()}
            self.machines[node].daemon = Daemon(member.index, self.plan.generation, owners)

    def next_plan(self) -> MemberPlan:
        return plan_members(
            self.plan,
            MemberInputs(HERE, MAX_NODES, self.nvlink_nodes, self.machines.keys(), Liveness(NOW)),
        )

    def reconcile(self) -> None:
        self.plan = self.next_plan()


class MembershipMachine(RuleBasedStateMachine):
    @initialize(nodes=st.sets(NODES, max_size=3))
    def start(self, nodes: set[str]) -> None:
        self.model = Model(machines={node: Machine(f"10.0.0.{node}") for node in nodes})
        self.everything_catches_up()

    @rule(node=NODES, address=ADDRESSES)
    def a_machine_is_added(self, node: str, address: str) -> None:
        self.model.machines.setdefault(node, Machine(address))
        self.model.publish(node)

    @rule(node=NODES)
    def a_machine_is_removed(self, node: str) -> None:
        self.model.machines.pop(node, None)

    @rule(old=NODES, new=NODES)
    def a_machine_is_replaced(self, old: str, new: str) -> None:
        self.a_machine_is_removed(old)
        self.the_controller_reconciles()
        self.a_machine_is_added(new, f"10.0.0.{new}")
        self.the_controller_reconciles()

    @rule(node=NODES)
    def an_nvlinknode_is_deleted(self, node: str) -> None:
        self.model.nvlink_nodes.pop(node, None)

    @rule(node=NODES)
    def a_daemon_fails(self, node: str) -> None:
        if machine := self.model.machines.get(node):
            machine.daemon = None

    @rule(node=NODES, address=ADDRESSES, fabric=st.sampled_from(FabricState))
    def a_machine_changes(self, node: str, address: str, fabric: FabricState) -> None:
        if machine := self.model.machines.get(node):
            machine.address, machine.fabric = address, fabric
            if fabric is FabricState.NONE:
                machine.daemon = None

    @rule(node=NODES, partition=st.sampled_from([HERE, ELSEWHERE]))
    def a_machine_moves(self, node: str, partition: str) -> None:
        machine = self.model.machines.get(node)
        if machine and machine.partition != partition:
            machine.partition, machine.daemon = partition, None

    @rule(nodes=st.sets(NODES))
    def nvlinknodes_are_written(self, nodes: set[str]) -> None:
        for node in nodes & self.model.machines.keys():
            self.model.publish(node)

    @rule(nodes=st.sets(NODES))
    def daemons_apply_the_list(self, nodes: set[str]) -> None:
        for node in nodes & self.model.machines.keys():
            self.model.apply(node)

    @rule()
    def the_controller_reconciles(self) -> None:
        model = self.model
        before, addresses = model.plan, model.addresses()
        staying = model.staying()
        model.reconcile()
        assert model.next_plan() == model.plan, "the same inputs lead to another plan"
        changed = model.addresses() != addresses
        assert model.plan.generation == before.generation + changed
        for node in staying.keys() - model.staying().keys():
            report = model.nvlink_nodes.get(node)
            gone = report and (
                report.status.partition == ELSEWHERE or report.status.fabric.state is FabricState.NONE
            )
            assert node not in model.machines or gone, f"{node} left without evidence"
        for node, member in model.staying().items():
            if node in staying:
                assert member.index == staying[node].index, f"the index of {node} changed"

    @rule()
    def everything_catches_up(self) -> None:
        """No deadlock: when all reports and daemons are current, every node that can join is a ready member."""
        model = self.model
        for _ in range(4):
            for node in sorted(model.machines):
                model.apply(node)
                model.publish(node)
            model.reconcile()
        if not self.outdated():
            assert not [m for m in model.plan.members if m.state is MemberState.LEAVING]
        belonging = {
            node
            for node, machine in model.machines.items()
            if machine.partition == HERE and machine.fabric is FabricState.OK and machine.address
        }
        assert belonging <= model.staying().keys() | set(model.plan.without_index)
        for node in belonging - set(model.plan.without_index):
            assert model.staying()[node].state is MemberState.READY
            assert model.staying()[node].address == model.machines[node].address

    def outdated(self) -> set[str]:
        """Members whose daemon does not run with the latest member list."""
        model = self.model
        daemons = {node: model.machines[node].daemon for node in model.staying()}
        return {node for node, d in daemons.items() if d is None or d.generation < model.plan.generation}

    @invariant()
    def no_index_has_two_members(self) -> None:
        indexes = [member.index for member in self.model.plan.members]
        assert len(indexes) == len(set(indexes))
        assert all(0 <= index < MAX_NODES for index in indexes)
        assert len(self.model.plan.members) == len({member.node for member in self.model.plan.members})
        if self.model.plan.without_index:
            assert len(indexes) == MAX_NODES

    @invariant()
    def no_daemon_assigns_an_index_to_another_node(self) -> None:
        owners = {m.index: m.node for m in self.model.staying().values()}
        for node in self.model.staying().keys() & self.model.machines.keys():
            daemon = self.model.machines[node].daemon
            if daemon is not None:
                for index, owner in daemon.owners.items():
                    assert owners.get(index, owner) == owner, (
                        f"the daemon of {node} still has {owner} at index {index}"
                    )


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(max_examples=200, stateful_step_count=25)
