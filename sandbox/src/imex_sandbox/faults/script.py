"""Fault scripts: parsed strictly, and checked as a whole against the cluster before the first step. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_sandbox.faults.kinds import (
    KUBELET,
    NODE_PROGRAMS,
    NVIDIA_IMEX,
    AnyFault,
    BreakFabric,
    ChangeClique,
    Fault,
    HangProcess,
    KillProcess,
    PendFabric,
)


class FaultScript(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["Faults"]
    steps: tuple[AnyFault, ...]


Nodes = Mapping[str, str]
"""The NVLink partition of each node, by name; empty if NVLink does not connect the node to others."""


def load(path: Path, nodes: Nodes) -> tuple[AnyFault, ...]:
    try:
        script = msgspec.yaml.decode(path.read_bytes(), type=FaultScript)
        check(script.steps, nodes)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, Misconfigured) as error:
        raise Misconfigured(f"{path} is not a valid fault script: {error}") from error
    return script.steps


def check(steps: Sequence[Fault], nodes: Nodes) -> None:
    """Check what types cannot express. Errors name the JSON path, as msgspec's do."""
    if not steps:
        raise Misconfigured("the script has no steps - at `$.steps`")
    for number, step in enumerate(steps):
        for path, message in _problems(step, nodes):
            raise Misconfigured(f"{message} - at `$.steps[{number}].{path}`")


def check_one(fault: Fault, nodes: Nodes) -> None:
    for path, message in _problems(fault, nodes):
        raise Misconfigured(f"{message} - at `$.{path}`")


def matching(patterns: Sequence[str], nodes: Collection[str]) -> tuple[str, ...]:
    """In the order of the cluster, each node once."""
    return tuple(node for node in nodes if any(fnmatchcase(node, pattern) for pattern in patterns))


def _problems(fault: Fault, nodes: Nodes) -> Iterator[tuple[str, str]]:
    """JSON paths and messages."""
    for field in ("nodes", "between"):
        for number, pattern in enumerate(getattr(fault, field, ())):
            if not matching((pattern,), nodes):
                yield f"{field}[{number}]", f"no node matches {pattern!r}: the cluster has {_listed(nodes)}"
    if isinstance(fault, KillProcess | HangProcess):
        yield from _process_problems(fault)
    if isinstance(fault, BreakFabric | PendFabric | ChangeClique):
        for name in matching(fault.nodes, nodes):
            if not nodes[name]:
                yield "nodes", f"node {name} is not part of an NVLink fabric: choose a node of another profile"


def _process_problems(fault: KillProcess | HangProcess) -> Iterator[tuple[str, str]]:
    if fault.program in NODE_PROGRAMS and not fault.nodes:
        yield "nodes", f"{fault.program} runs on every node: name the nodes"
    if fault.program not in NODE_PROGRAMS and fault.nodes:
        yield "nodes", f"{fault.program} does not run on a node: omit the nodes"
    if isinstance(fault, HangProcess) and fault.program == KUBELET:
        yield "program", "all kubelets of the cluster share a process: use kill-process or cut-api instead"
    if isinstance(fault, KillProcess) and fault.program == NVIDIA_IMEX and fault.for_:
        yield "for", "its supervisor restarts nvidia-imex at once: use hang-process, or kill imex-supervisor"


def _listed(nodes: Collection[str]) -> str:
    names = list(nodes)
    return f"{names[0]} to {names[-1]}" if len(names) > 3 else ", ".join(names) or "none"
