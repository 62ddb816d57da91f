"""Faults come, overlap and go in any order; what is done each time leaves what those say that still stand."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_dra.sandbox.faults.conduct import Conduct
from imex_dra.sandbox.faults.effects import (
    NOWHERE,
    Action,
    Behave,
    Do,
    Load,
    Place,
    Power,
    SetFabric,
    SetNetwork,
    State,
    States,
    changes,
    happening,
    stands,
    states,
)
from imex_dra.sandbox.faults.kinds import (
    BreakFabric,
    ChangeClique,
    CutApi,
    DelayTraffic,
    DropTraffic,
    Fault,
    HangProcess,
    KillNode,
    KillProcess,
    PendFabric,
    Program,
    RebootNode,
    ReloadDriver,
    RestartKubelet,
)

HOME = PartitionId("7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1")
OTHER = PartitionId("7b968a6d-c8aa-45e1-9e07-e1e51be99c31.7")
LAYOUT = {f"n{number}": Place(f"127.16.0.{10 + number}", HOME) for number in range(3)}
QUIET = states([], LAYOUT)


def begun(*faults: Fault) -> tuple[Action, ...]:
    return changes(QUIET, states(faults, LAYOUT))


def undone(*faults: Fault) -> tuple[Action, ...]:
    return changes(states(faults, LAYOUT), QUIET)


@pytest.mark.parametrize(
    ("fault", "there", "back"),
    [
        (KillNode(nodes=("n1",)), [Power("n1", False)], [Power("n1", True)]),
        (
            KillProcess(program="imex-node", nodes=("n[02]",), for_="1s"),
            [Do("kill", "imex-node", "n0"), Do("kill", "imex-node", "n2")],
            [Do("start", "imex-node", "n0"), Do("start", "imex-node", "n2")],
        ),
        (
            KillProcess(program="apiserver", for_="1s"),
            [Do("kill", "apiserver", NOWHERE)],
            [Do("start", "apiserver", NOWHERE)],
        ),
        (
            HangProcess(program="nvidia-imex", nodes=("n0",)),
            [Do("hang", "nvidia-imex", "n0")],
            [Do("resume", "nvidia-imex", "n0")],
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
        (CutApi(nodes=("n0",)), [Behave("n0", Conduct(silent=True))], [Behave("n0", Conduct())]),
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
def test_what_a_fault_does_and_what_undoes_it(fault: Fault, there: list[Action], back: list[Action]) -> None:
    assert stands(fault)
    assert list(begun(fault)) == there
    assert list(undone(fault)) == back


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (RebootNode(nodes=("n1",)), [Power("n1", False), Power("n1", True)]),
        (RestartKubelet(nodes=("n1",)), [Do("kill", "kubelet", "n1"), Do("start", "kubelet", "n1")]),
        (
            KillProcess(program="imex-controller"),
            [Do("kill", "imex-controller", NOWHERE), Do("start", "imex-controller", NOWHERE)],
        ),
        (KillProcess(program="nvidia-imex", nodes=("n1",)), [Do("kill", "nvidia-imex", "n1")]),
        (ReloadDriver(nodes=("n1",), major=240), [Load("n1", 240, ""), Do("kill", "nvidia-imex", "n1")]),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_what_happens_at_once(fault: Fault, expected: list[Action]) -> None:
    assert not stands(fault)
    assert list(happening(fault, QUIET, LAYOUT)) == expected


def test_a_rebooted_node_comes_back_with_the_faults_that_stand_on_it() -> None:
    now = states(
        [
            KillProcess(program="imex-node", nodes=("n1",), for_="1s"),
            HangProcess(program="nvidia-imex", nodes=("n1",)),
        ],
        LAYOUT,
    )
    assert happening(RebootNode(nodes=("n1",)), now, LAYOUT) == (
        Power("n1", False),
        Power("n1", True),
        Do("kill", "imex-node", "n1"),
        Do("hang", "nvidia-imex", "n1"),
    )


def test_a_hanging_program_that_is_killed_hangs_again_when_it_is_back() -> None:
    now = states([HangProcess(program="imex-node", nodes=("n1",))], LAYOUT)
    assert happening(KillProcess(program="imex-node", nodes=("n1",)), now, LAYOUT) == (
        Do("kill", "imex-node", "n1"),
        Do("start", "imex-node", "n1"),
        Do("hang", "imex-node", "n1"),
    )


def test_of_two_reasons_for_one_fabric_the_last_is_told_and_broken_is_worse_than_pending() -> None:
    faults = [BreakFabric(nodes=("n1",), reason="first"), BreakFabric(nodes=("n1",), reason="second")]
    worse = states([*faults, PendFabric(nodes=("n1",))], LAYOUT)["n1"]
    assert worse.fabric == Fabric(FabricState.BROKEN, "second")


def test_nothing_happens_to_a_node_without_power_or_to_a_program_that_is_down() -> None:
    off = states([KillNode(nodes=("n1",))], LAYOUT)
    with pytest.raises(Rejected, match="node n1 has no power, so there is nothing to reboot-node"):
        happening(RebootNode(nodes=("*",)), off, LAYOUT)
    down = states([KillProcess(program="apiserver", for_="1s")], LAYOUT)
    with pytest.raises(Rejected, match="apiserver is down already"):
        happening(KillProcess(program="apiserver"), down, LAYOUT)


@dataclass
class Machine:
    """A node that is as strict as can be: nothing is killed, started, stopped or resumed twice."""

    powered: bool = True
    down: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    fabric: tuple[Fabric, str] = (Fabric(FabricState.OK), HOME)
    network: dict[str, Any] = field(default_factory=dict)
    conduct: Conduct = field(default_factory=Conduct)

    def take(self, action: Action) -> None:
        match action:
            case Power(_, on):
                assert on != self.powered
                self.powered, self.down, self.hung = on, set(), set()
            case Do(verb, program, _):
                assert self.powered
                getattr(self, f"_{verb}")(program)
            case SetFabric(_, fabric, partition):
                self.fabric = fabric, partition
            case SetNetwork(_, network):
                self.network = dict(network)
            case Behave(_, conduct):
                self.conduct = conduct

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

    def agrees(self, state: State) -> bool:
        programs = not self.powered or (self.down == state.down and self.hung == state.hung - state.down)
        files = (self.fabric, self.network, self.conduct)
        return (
            self.powered == state.powered
            and programs
            and files == ((state.fabric, state.partition), state.network, state.conduct)
        )


def everybody(wanted: States) -> dict[str, Machine]:
    return {name: Machine(fabric=(state.fabric, state.partition)) for name, state in wanted.items()}


patterns = st.sampled_from(["n0", "n1", "n[01]", "*"])
programs = st.sampled_from(Program.ON_NODES)
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
def test_any_overlap_leaves_what_the_standing_faults_say_and_nothing_when_all_are_undone(
    moves: list[Fault | int],
) -> None:
    standing: list[Fault] = []
    machines = everybody(QUIET)

    def become(after: list[Fault]) -> None:
        for action in changes(states(standing, LAYOUT), states(after, LAYOUT)):
            machines[action.node].take(action)
        standing[:] = after
        wanted = states(standing, LAYOUT)
        assert all(machine.agrees(wanted[name]) for name, machine in machines.items())

    for move in moves:
        if isinstance(move, Fault):
            become([*standing, move])
        elif standing:
            become([fault for number, fault in enumerate(standing) if number != move % len(standing)])
    become([])
    assert machines == everybody(QUIET)
