"""What the faults that stand do to a cluster, and what has to be done when one comes or goes. Pure.

The state of every node is a function of all faults that stand on it, and a change is the difference between two
states. So faults may overlap in any order: a node that was killed twice boots when the second one is undone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from imex_dra.api.names import PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_dra.sandbox.faults.conduct import Conduct, conduct
from imex_dra.sandbox.faults.kinds import (
    BreakFabric,
    ChangeClique,
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
    seconds,
)
from imex_dra.sandbox.faults.script import matching

NOWHERE = ""
"""In the place of a node's name: where imex-controller and the API server run."""


class Place(NamedTuple):
    """What a node is while nothing is wrong; no partition: its NVLink does not leave it."""

    address: str
    partition: str


class State(Struct, frozen=True):
    """Of one node, or of what runs on none."""

    powered: bool = True
    down: frozenset[str] = frozenset()
    hung: frozenset[str] = frozenset()
    fabric: Fabric = Fabric(FabricState.OK)
    partition: str = ""
    network: Mapping[str, str | float] = {}
    """By the other's address: drop, or milliseconds; as in `network.json`."""
    conduct: Conduct = Conduct()


class Power(Struct, frozen=True):
    node: str
    on: bool


class Do(Struct, frozen=True):
    verb: str
    """kill, start, hang or resume."""
    program: str
    node: str = NOWHERE


class SetFabric(Struct, frozen=True):
    node: str
    fabric: Fabric
    partition: PartitionId


class SetNetwork(Struct, frozen=True):
    node: str
    network: Mapping[str, str | float]


class Behave(Struct, frozen=True):
    node: str
    conduct: Conduct


class Load(Struct, frozen=True):
    node: str
    major: int
    version: str


Action = Power | Do | SetFabric | SetNetwork | Behave | Load
Layout = Mapping[str, Place]
States = Mapping[str, State]


def stands(fault: Fault) -> bool:
    """Whether there is something to undo; a program killed without a time is started again at once."""
    return fault.lasts and not (isinstance(fault, KillProcess) and fault.for_ is None)


def states(standing: Sequence[Fault], layout: Layout) -> States:
    return {name: _state(name, standing, layout) for name in (NOWHERE, *layout)}


def changes(before: States, after: States) -> tuple[Action, ...]:
    return tuple(action for name in before for action in _changes(name, before[name], after[name]))


def happening(fault: Fault, now: States, layout: Layout) -> tuple[Action, ...]:
    """What a fault does that is over at once."""
    return tuple(action for name in _where(fault, layout) for action in _at_once(fault, name, now[name]))


def _where(fault: Fault, layout: Layout) -> tuple[str, ...]:
    return matching(getattr(fault, "nodes", ()), layout) or (NOWHERE,)


def _at_once(fault: Fault, node: str, now: State) -> Iterator[Action]:
    if not now.powered:
        raise Rejected(f"node {node} has no power, so there is nothing to {fault.kind}: undo its kill-node first")
    match fault:
        case RebootNode():
            off = structs.replace(now, powered=False)
            yield from (*_changes(node, now, off), *_changes(node, off, now))
        case RestartKubelet():
            yield from _again(Program.KUBELET, node, now)
        case KillProcess():
            yield from _again(fault.program, node, now)
        case ReloadDriver():
            yield Load(node, fault.major, fault.version)
            yield Do("kill", Program.IMEX, node)


def _again(program: str, node: str, now: State) -> Iterator[Action]:
    if program in now.down:
        raise Rejected(f"{program} {f'of node {node} ' if node else ''}is down already, by another fault")
    yield Do("kill", program, node)
    if program != Program.IMEX:  # imex-daemon starts it itself
        yield Do("start", program, node)
    if program in now.hung:
        yield Do("hang", program, node)


def _changes(node: str, before: State, after: State) -> Iterator[Action]:
    if (before.fabric, before.partition) != (after.fabric, after.partition):
        yield SetFabric(node, after.fabric, PartitionId(after.partition))
    if before.network != after.network:
        yield SetNetwork(node, after.network)
    if before.conduct != after.conduct:
        yield Behave(node, after.conduct)
    if before.powered != after.powered:
        yield Power(node, after.powered)
        before = State()
    if after.powered:
        yield from _programs(node, before, after)


def _programs(node: str, before: State, after: State) -> Iterator[Action]:
    wanted = (
        ("kill", after.down - before.down),
        ("start", before.down - after.down),
        ("resume", before.hung - after.hung - before.down - after.down),
        ("hang", after.hung - after.down - (before.hung - before.down)),
    )
    for verb, programs in wanted:
        for program in sorted(programs):
            yield Do(verb, program, node)


def _state(name: str, standing: Sequence[Fault], layout: Layout) -> State:
    place = layout.get(name, Place("", ""))
    here = [fault for fault in standing if name in _where(fault, layout)]
    return State(
        powered=not any(isinstance(fault, KillNode) for fault in here),
        down=frozenset(fault.program for fault in here if isinstance(fault, KillProcess)),
        hung=frozenset(fault.program for fault in here if isinstance(fault, HangProcess)),
        fabric=_fabric(here),
        partition=_partition(place.partition, here),
        network=dict(_network(name, standing, layout)),
        conduct=conduct(here),
    )


def _fabric(here: Sequence[Fault]) -> Fabric:
    """The worst, and of equals the last."""
    for kind, state in ((BreakFabric, FabricState.BROKEN), (PendFabric, FabricState.PENDING)):
        for fault in reversed(here):
            if isinstance(fault, kind):
                return Fabric(state, fault.reason)
    return Fabric(FabricState.OK)


def _partition(home: str, here: Sequence[Fault]) -> str:
    cliques = [fault.clique for fault in here if isinstance(fault, ChangeClique)]
    return partition_id(home.rpartition(".")[0], cliques[-1]) if home and cliques else home


def _network(name: str, standing: Sequence[Fault], layout: Layout) -> Iterator[tuple[str, str | float]]:
    for other, place in layout.items():
        cables = [fault for fault in standing if _joins(fault, name, other, layout)]
        delays = [seconds(fault.delay) * 1000 for fault in cables if isinstance(fault, DelayTraffic)]
        if any(isinstance(fault, DropTraffic) for fault in cables):
            yield place.address, "drop"
        elif delays:
            yield place.address, max(delays)


def _joins(fault: Fault, one: str, other: str, layout: Layout) -> bool:
    if not isinstance(fault, DropTraffic | DelayTraffic) or one == other:
        return False
    here, there = (matching((pattern,), layout) for pattern in fault.between)
    return (one in here and other in there) or (one in there and other in here)
