"""Faults overlap and are undone in any order; the cluster always has the state of the faults that are active."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_sandbox.faults.effects import (
    NO_NODE,
    Action,
    ControlProgram,
    LoadDriver,
    NodeLayout,
    SetFabric,
    SetNetwork,
    SetPower,
    SetProxy,
    State,
    States,
    changes,
    immediate_actions,
    proxy_behavior,
    states,
    stays_active,
)
from imex_sandbox.faults.kinds import (
    NODE_PROGRAMS,
    BreakFabric,
    ChangeClique,
    CutApi,
    DelayTraffic,
    DropTraffic,
    ExpireWatches,
    FailApi,
    Fault,
    HangProcess,
    KillNode,
    KillProcess,
    PendFabric,
    RebootNode,
    ReloadDriver,
    RestartKubelet,
    ThrottleApi,
)
from imex_sandbox.proxy.behavior import Behavior, InjectedError

HOME = PartitionId("7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1")
OTHER = PartitionId("7b968a6d-c8aa-45e1-9e07-e1e51be99c31.7")
LAYOUT = {f"n{number}": NodeLayout(f"127.16.0.{10 + number}", HOME) for number in range(3)}
NO_FAULTS = states([], LAYOUT)


def injected(*faults: Fault) -> tuple[Action, ...]:
    return changes(NO_FAULTS, states(faults, LAYOUT))


def undone(*faults: Fault) -> tuple[Action, ...]:
    return changes(states(faults, LAYOUT), NO_FAULTS)


@pytest.mark.parametrize(
    ("fault", "inject_actions", "undo_actions"),
    [
        (KillNode(nodes=("n1",)), [SetPower("n1", False)], [SetPower("n1", True)]),
        (
            KillProcess(program="imex-node", nodes=("n[02]",), for_="1s"),
            [ControlProgram("kill", "imex-node", "n0"), ControlProgram("kill", "imex-node", "n2")],
            [ControlProgram("start", "imex-node", "n0"), ControlProgram("start", "imex-node", "n2")],
        ),
        (
            KillProcess(program="apiserver", for_="1s"),
            [ControlProgram("kill", "apiserver", NO_NODE)],
            [ControlProgram("start", "apiserver", NO_NODE)],
        ),
        (
            HangProcess(program="nvidia-imex", nodes=("n0",)),
            [ControlProgram("hang", "nvidia-imex", "n0")],
            [ControlProgram("resume", "nvidia-imex", "n0")],
        ),
        (
            DropTraffic(between=("n0", "n2")),
            [SetNetwork("n0", {"127.16.0.12": "drop"}), SetNetwork("n2", {"127.16.0.10": "drop"})],
            [SetNetwork("n0", {}), SetNetwork("n2", {})],
        ),
        (
            DelayTraffic(between=("n0", "*"), delay="200ms"),
            [
                SetNetwork("n0", {"127.16.0.11": 200.0, "127.16.0.12": 200.0}),
                SetNetwork("n1", {"127.16.0.10": 200.0}),
                SetNetwork("n2", {"127.16.0.10": 200.0}),
            ],
            [SetNetwork("n0", {}), SetNetwork("n1", {}), SetNetwork("n2", {})],
        ),
        (CutApi(nodes=("n0",)), [SetProxy("n0", Behavior(stall=True))], [SetProxy("n0", Behavior())]),
        (
            BreakFabric(nodes=("n0",), reason="cut"),
            [SetFabric("n0", Fabric(FabricState.BROKEN, "cut"), HOME)],
            [SetFabric("n0", Fabric(FabricState.OK), HOME)],
        ),
        (
            ChangeClique(nodes=("n0",), clique=7),
            [SetFabric("n0", Fabric(FabricState.OK), OTHER)],
            [SetFabric("n0", Fabric(FabricState.OK), HOME)],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_the_actions_that_inject_a_fault_and_that_undo_it(
    fault: Fault, inject_actions: list[Action], undo_actions: list[Action]
) -> None:
    assert stays_active(fault)
    assert list(injected(fault)) == inject_actions
    assert list(undone(fault)) == undo_actions


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (RebootNode(nodes=("n1",)), [SetPower("n1", False), SetPower("n1", True)]),
        (
            RestartKubelet(nodes=("n1",)),
            [ControlProgram("kill", "kubelet", "n1"), ControlProgram("start", "kubelet", "n1")],
        ),
        (
            KillProcess(program="imex-controller"),
            [
                ControlProgram("kill", "imex-controller", NO_NODE),
                ControlProgram("start", "imex-controller", NO_NODE),
            ],
        ),
        (KillProcess(program="nvidia-imex", nodes=("n1",)), [ControlProgram("kill", "nvidia-imex", "n1")]),
        (
            ReloadDriver(nodes=("n1",), major=240),
            [LoadDriver("n1", 240, ""), ControlProgram("kill", "nvidia-imex", "n1")],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_the_actions_of_a_fault_with_an_immediate_effect(fault: Fault, expected: list[Action]) -> None:
    assert not stays_active(fault)
    assert list(immediate_actions(fault, NO_FAULTS, LAYOUT)) == expected


def test_a_rebooted_node_still_has_its_active_faults() -> None:
    now = states(
        [
            KillProcess(program="imex-node", nodes=("n1",), for_="1s"),
            HangProcess(program="nvidia-imex", nodes=("n1",)),
        ],
        LAYOUT,
    )
    assert immediate_actions(RebootNode(nodes=("n1",)), now, LAYOUT) == (
        SetPower("n1", False),
        SetPower("n1", True),
        ControlProgram("kill", "imex-node", "n1"),
        ControlProgram("hang", "nvidia-imex", "n1"),
    )


def test_a_hung_program_that_is_killed_hangs_again_after_its_restart() -> None:
    now = states([HangProcess(program="imex-node", nodes=("n1",))], LAYOUT)
    assert immediate_actions(KillProcess(program="imex-node", nodes=("n1",)), now, LAYOUT) == (
        ControlProgram("kill", "imex-node", "n1"),
        ControlProgram("start", "imex-node", "n1"),
        ControlProgram("hang", "imex-node", "n1"),
    )


def test_the_last_reason_for_a_broken_fabric_is_reported_and_broken_takes_precedence_over_pending() -> None:
    faults = [BreakFabric(nodes=("n1",), reason="first"), BreakFabric(nodes=("n1",), reason="second")]
    worse = states([*faults, PendFabric(nodes=("n1",))], LAYOUT)["n1"]
    assert worse.fabric == Fabric(FabricState.BROKEN, "second")


def test_a_node_without_power_and_a_program_that_is_down_cannot_be_restarted() -> None:
    off = states([KillNode(nodes=("n1",))], LAYOUT)
    with pytest.raises(Rejected, match="reboot-node is not possible: node n1 is powered off"):
        immediate_actions(RebootNode(nodes=("*",)), off, LAYOUT)
    down = states([KillProcess(program="apiserver", for_="1s")], LAYOUT)
    with pytest.raises(Rejected, match="another fault has already killed apiserver"):
        immediate_actions(KillProcess(program="apiserver"), down, LAYOUT)


STALL, REFUSE = CutApi(nodes=("n0",)), CutApi(nodes=("n0",), refuse=True)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([], Behavior()),
        ([BreakFabric(nodes=("n0",))], Behavior()),
        ([STALL], Behavior(stall=True)),
        ([REFUSE], Behavior(refuse=True)),
        ([STALL, REFUSE], Behavior(refuse=True, stall=True)),
        ([FailApi(share=0.3, code=500)], Behavior(errors=(InjectedError(500, 0.3),))),
        ([ThrottleApi(share=0.3)], Behavior(errors=(InjectedError(429, 0.3, retry_after=1),))),
        ([ExpireWatches(every="3s"), ExpireWatches(every="500ms")], Behavior(watch_seconds=0.5)),
        ([REFUSE, FailApi(share=1.0)], Behavior(refuse=True, errors=(InjectedError(503, 1.0),))),
    ],
)
def test_api_faults_on_one_node_add_up(faults: list[Fault], expected: Behavior) -> None:
    assert proxy_behavior(faults) == expected


@dataclass
class NodeModel:
    """A strict model of a node: a program cannot be killed, started, hung or resumed twice."""

    powered: bool = True
    down: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    fabric: tuple[Fabric, str] = (Fabric(FabricState.OK), HOME)
    network: dict[str, Any] = field(default_factory=dict)
    proxy: Behavior = field(default_factory=Behavior)

    def apply(self, action: Action) -> None:
        match action:
            case SetPower(_, on):
                assert on != self.powered
                self.powered, self.down, self.hung = on, set(), set()
            case ControlProgram(name, program, _):
                assert self.powered
                getattr(self, f"_{name}")(program)
            case SetFabric(_, fabric, partition):
                self.fabric = fabric, partition
            case SetNetwork(_, network):
                self.network = dict(network)
            case SetProxy(_, behavior):
                self.proxy = behavior

    def _kill(self, program: str) -> None:
        assert program not in self.down
        self.hung.discard(program)
        self.down.add(program)

    def _start(self, program: str) -> None:
        self.down.remove(program)

    def _hang(self, program: str) -> None:
        assert program not in self.down | self.hung
        self.hung.add(program)

    def _resume(self, program: str) -> None:
        self.hung.remove(program)

    def matches(self, state: State) -> bool:
        programs = not self.powered or (self.down == state.down and self.hung == state.hung - state.down)
        files = (self.fabric, self.network, self.proxy)
        return (
            self.powered == state.powered
            and programs
            and files == ((state.fabric, state.partition), state.network, state.proxy)
        )


def model(wanted: States) -> dict[str, NodeModel]:
    return {name: NodeModel(fabric=(state.fabric, state.partition)) for name, state in wanted.items()}


patterns = st.sampled_from(["n0", "n1", "n[01]", "*"])
programs = st.sampled_from(NODE_PROGRAMS)
lasting = st.one_of(
    st.builds(KillNode, nodes=st.tuples(patterns)),
    st.builds(KillProcess, program=programs, nodes=st.tuples(patterns), for_=st.just("1s")),
    st.builds(KillProcess, program=st.sampled_from(["imex-controller", "apiserver"]), for_=st.just("1s")),
    st.builds(HangProcess, program=programs, nodes=st.tuples(patterns)),
    st.builds(DropTraffic, between=st.tuples(patterns, patterns)),
    st.builds(DelayTraffic, between=st.tuples(patterns, patterns), delay=st.sampled_from(["1ms", "1s"])),
    st.builds(CutApi, nodes=st.tuples(patterns), refuse=st.booleans()),
    st.builds(BreakFabric, nodes=st.tuples(patterns)),
    st.builds(PendFabric, nodes=st.tuples(patterns)),
    st.builds(ChangeClique, nodes=st.tuples(patterns), clique=st.integers(2, 4)),
)


@given(st.lists(st.one_of(lasting, st.integers(0, 20)), max_size=15))
def test_faults_may_overlap_in_any_order_and_nothing_is_left_when_all_are_undone(
    moves: list[Fault | int],
) -> None:
    active: list[Fault] = []
    nodes = model(NO_FAULTS)

    def change_to(after: list[Fault]) -> None:
        for action in changes(states(active, LAYOUT), states(after, LAYOUT)):
            nodes[action.node].apply(action)
        active[:] = after
        wanted = states(active, LAYOUT)
        assert all(node.matches(wanted[name]) for name, node in nodes.items())

    for move in moves:
        if isinstance(move, Fault):
            change_to([*active, move])
        elif active:
            change_to([fault for number, fault in enumerate(active) if number != move % len(active)])
    change_to([])
    assert nodes == model(NO_FAULTS)
