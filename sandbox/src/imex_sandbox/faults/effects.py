"""What the active faults do to a cluster, and what must be done when a fault begins or ends. Pure.

The state of each node is a function of all active faults, and a change is the difference between two states. So
faults may overlap in any order: a node that two faults power off boots when the second fault is undone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from imex_dra.api.names import PartitionId, partition_id
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_sandbox.faults.kinds import (
    KUBELET,
    NVIDIA_IMEX,
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
    parse_duration,
)
from imex_sandbox.faults.script import matching
from imex_sandbox.proxy.behavior import Behavior, InjectedError

NO_NODE = ""
"""Instead of a node's name: imex-controller and the API server do not run on a node."""


class NodeLayout(NamedTuple):
    """A node without faults. The partition is empty if NVLink does not connect the node to others."""

    address: str
    partition: str


class State(Struct, frozen=True):
    """The state of one node, or of the programs that do not run on a node."""

    powered: bool = True
    down: frozenset[str] = frozenset()
    hung: frozenset[str] = frozenset()
    fabric: Fabric = Fabric(FabricState.OK)
    partition: str = ""
    network: Mapping[str, str | float] = {}
    """As in `network.json`: by address of the other node, `drop` or a delay in milliseconds."""
    proxy: Behavior = Behavior()


class SetPower(Struct, frozen=True):
    node: str
    on: bool


class ControlProgram(Struct, frozen=True):
    action: str
    """kill, start, hang or resume."""
    program: str
    node: str = NO_NODE


class SetFabric(Struct, frozen=True):
    node: str
    fabric: Fabric
    partition: PartitionId


class SetNetwork(Struct, frozen=True):
    node: str
    network: Mapping[str, str | float]


class SetProxy(Struct, frozen=True):
    node: str
    behavior: Behavior


class LoadDriver(Struct, frozen=True):
    node: str
    major: int
    version: str


Action = SetPower | ControlProgram | SetFabric | SetNetwork | SetProxy | LoadDriver
Layout = Mapping[str, NodeLayout]
States = Mapping[str, State]


def stays_active(fault: Fault) -> bool:
    """Whether there is something to undo. A program that is killed without a time is restarted at once."""
    return fault.lasts and not (isinstance(fault, KillProcess) and fault.for_ is None)


def states(active: Sequence[Fault], layout: Layout) -> States:
    return {name: _state(name, active, layout) for name in (NO_NODE, *layout)}


def changes(before: States, after: States) -> tuple[Action, ...]:
    return tuple(action for name in before for action in _changes(name, before[name], after[name]))


def immediate_actions(fault: Fault, now: States, layout: Layout) -> tuple[Action, ...]:
    """The actions of a fault that does not stay active."""
    return tuple(action for name in _targets(fault, layout) for action in _immediate(fault, name, now[name]))


def _targets(fault: Fault, layout: Layout) -> tuple[str, ...]:
    return matching(getattr(fault, "nodes", ()), layout) or (NO_NODE,)


def _immediate(fault: Fault, node: str, now: State) -> Iterator[Action]:
    if not now.powered:
        raise Rejected(f"{fault.kind} is not possible: node {node} is powered off; undo its kill-node first")
    match fault:
        case RebootNode():
            off = structs.replace(now, powered=False)
            yield from (*_changes(node, now, off), *_changes(node, off, now))
        case RestartKubelet():
            yield from _restart(KUBELET, node, now)
        case KillProcess():
            yield from _restart(fault.program, node, now)
        case ReloadDriver():
            yield LoadDriver(node, fault.major, fault.version)
            yield ControlProgram("kill", NVIDIA_IMEX, node)


def _restart(program: str, node: str, now: State) -> Iterator[Action]:
    if program in now.down:
        where = f" of node {node}" if node else ""
        raise Rejected(f"another fault has already killed {program}{where}: undo it first")
    yield ControlProgram("kill", program, node)
    if program != NVIDIA_IMEX:  # its supervisor restarts it
        yield ControlProgram("start", program, node)
    if program in now.hung:
        yield ControlProgram("hang", program, node)


def _changes(node: str, before: State, after: State) -> Iterator[Action]:
    if (before.fabric, before.partition) != (after.fabric, after.partition):
        yield SetFabric(node, after.fabric, PartitionId(after.partition))
    if before.network != after.network:
        yield SetNetwork(node, after.network)
    if before.proxy != after.proxy:
        yield SetProxy(node, after.proxy)
    if before.powered != after.powered:
        yield SetPower(node, after.powered)
        before = State()  # All programs run after a boot, whatever their state was before.
    if after.powered:
        yield from _program_changes(node, before, after)


def _program_changes(node: str, before: State, after: State) -> Iterator[Action]:
    # A program that is down cannot be stopped or continued, so `down` takes precedence over `hung`.
    wanted = (
        ("kill", after.down - before.down),
        ("start", before.down - after.down),
        ("resume", before.hung - after.hung - before.down - after.down),
        ("hang", after.hung - after.down - (before.hung - before.down)),
    )
    for action, programs in wanted:
        for program in sorted(programs):
            yield ControlProgram(action, program, node)


def _state(name: str, active: Sequence[Fault], layout: Layout) -> State:
    original = layout[name].partition if name in layout else ""
    here = [fault for fault in active if name in _targets(fault, layout)]
    return State(
        powered=not any(isinstance(fault, KillNode) for fault in here),
        down=frozenset(fault.program for fault in here if isinstance(fault, KillProcess)),
        hung=frozenset(fault.program for fault in here if isinstance(fault, HangProcess)),
        fabric=_fabric(here),
        partition=_partition(original, here),
        network=dict(_network(name, active, layout)),
        proxy=proxy_behavior(here),
    )


def _fabric(here: Sequence[Fault]) -> Fabric:
    """Broken takes precedence over pending, and of two equal faults the last one gives the reason."""
    for kind, state in ((BreakFabric, FabricState.BROKEN), (PendFabric, FabricState.PENDING)):
        for fault in reversed(here):
            if isinstance(fault, kind):
                return Fabric(state, fault.reason)
    return Fabric(FabricState.OK)


def _partition(original: str, here: Sequence[Fault]) -> str:
    cliques = [fault.clique for fault in here if isinstance(fault, ChangeClique)]
    return partition_id(original.rpartition(".")[0], cliques[-1]) if original and cliques else original


def _network(name: str, active: Sequence[Fault], layout: Layout) -> Iterator[tuple[str, str | float]]:
    for other, node in layout.items():
        between = [fault for fault in active if _is_between(fault, name, other, layout)]
        delays = [parse_duration(fault.delay) * 1000 for fault in between if isinstance(fault, DelayTraffic)]
        if any(isinstance(fault, DropTraffic) for fault in between):
            yield node.address, "drop"
        elif delays:
            yield node.address, max(delays)


def _is_between(fault: Fault, one: str, other: str, layout: Layout) -> bool:
    if not isinstance(fault, DropTraffic | DelayTraffic) or one == other:
        return False
    here, there = (matching((pattern,), layout) for pattern in fault.between)
    return (one in here and other in there) or (one in there and other in here)


def proxy_behavior(faults: Iterable[Fault]) -> Behavior:
    """Several faults on one node add up."""
    here = list(faults)
    cuts = [fault for fault in here if isinstance(fault, CutApi)]
    lifetimes = [parse_duration(fault.every) for fault in here if isinstance(fault, ExpireWatches)]
    return Behavior(
        refuse=any(cut.refuse for cut in cuts),
        stall=any(not cut.refuse for cut in cuts),
        errors=tuple(_injected_error(fault) for fault in here if isinstance(fault, FailApi | ThrottleApi)),
        watch_seconds=min(lifetimes, default=None),
    )


def _injected_error(fault: FailApi | ThrottleApi) -> InjectedError:
    if isinstance(fault, ThrottleApi):
        return InjectedError(429, fault.share, fault.retry_after)
    return InjectedError(fault.code, fault.share)
