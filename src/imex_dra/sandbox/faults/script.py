"""A script of faults: read strictly, and checked against a cluster as a whole before its first step. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.faults.kinds import (
    AnyFault,
    BreakFabric,
    ChangeClique,
    Fault,
    HangProcess,
    KillProcess,
    PendFabric,
    Program,
)


class Faults(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Steps begin in order, each `after` the one before began; `for` counts from when it is in place."""

    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["Faults"]
    steps: tuple[AnyFault, ...]


Nodes = Mapping[str, str]
"""The partition of each node, by name; empty where NVLink does not leave the node."""


def load(path: Path, nodes: Nodes) -> tuple[AnyFault, ...]:
    try:
        script = msgspec.yaml.decode(path.read_bytes(), type=Faults)
        check(script.steps, nodes)
    except OSError as error:
        raise Misconfigured(f"{path} can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, Misconfigured) as error:
        raise Misconfigured(f"{path} is no script of faults: {error}") from error
    return script.steps


def check(steps: Sequence[Fault], nodes: Nodes) -> None:
    """What types can't say; an error names the place as a JSON path, as a wrong type would."""
    if not steps:
        raise Misconfigured("it has no step - at `$.steps`")
    for number, step in enumerate(steps):
        for place, words in _complaints(step, nodes):
            raise Misconfigured(f"{words} - at `$.steps[{number}].{place}`")


def check_one(fault: Fault, nodes: Nodes) -> None:
    for place, words in _complaints(fault, nodes):
        raise Misconfigured(f"{words} - at `$.{place}`")


def matching(patterns: Sequence[str], nodes: Collection[str]) -> tuple[str, ...]:
    """In the cluster's order, each once."""
    return tuple(node for node in nodes if any(fnmatchcase(node, pattern) for pattern in patterns))


def _complaints(fault: Fault, nodes: Nodes) -> Iterator[tuple[str, str]]:
    for field in ("nodes", "between"):
        for number, pattern in enumerate(getattr(fault, field, ())):
            if not matching((pattern,), nodes):
                yield f"{field}[{number}]", f"no node {pattern!r} in this cluster: it has {_listed(nodes)}"
    if isinstance(fault, KillProcess | HangProcess):
        yield from _process_complaints(fault)
    if isinstance(fault, BreakFabric | PendFabric | ChangeClique):
        for name in matching(fault.nodes, nodes):
            if not nodes[name]:
                yield "nodes", f"NVLink does not leave node {name}: it has no fabric that could change"


def _process_complaints(fault: KillProcess | HangProcess) -> Iterator[tuple[str, str]]:
    if fault.program in Program.ON_NODES and not fault.nodes:
        yield "nodes", f"{fault.program} runs on every node: say on which to {fault.kind.partition('-')[0]} it"
    if fault.program not in Program.ON_NODES and fault.nodes:
        yield "nodes", f"{fault.program} runs on no node: leave the nodes out"
    if isinstance(fault, HangProcess) and fault.program == Program.KUBELET:
        yield "program", "the kubelets of a cluster share a process: kill it, or cut it off the API"
    if isinstance(fault, KillProcess) and fault.program == Program.IMEX and fault.for_:
        yield "for", "imex-daemon starts nvidia-imex again at once: hang it, or kill imex-daemon"


def _listed(nodes: Collection[str]) -> str:
    first = list(nodes)
    return f"{first[0]} to {first[-1]}" if len(first) > 3 else ", ".join(first) or "none"
