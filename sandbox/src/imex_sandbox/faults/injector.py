"""Injects faults into a running cluster and undoes them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec import structs

from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ImexError, Rejected
from imex_sandbox.cluster.handle import Cluster
from imex_sandbox.faults.effects import (
    Action,
    ControlProgram,
    LoadDriver,
    NodeLayout,
    SetFabric,
    SetNetwork,
    SetPower,
    SetProxy,
    States,
    changes,
    immediate_actions,
    states,
    stays_active,
)
from imex_sandbox.faults.kinds import AnyFault
from imex_sandbox.faults.script import check_one
from imex_sandbox.faults.store import ActiveFault, FaultStore

_PROGRAM_NAMES = {"apiserver": "kube-apiserver"}
"""The cluster's names of programs, where they differ from those of `imex fault`."""


class Injector:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = Clock()
        self._store = FaultStore(cluster.paths.run)
        self._layout = {node.name: NodeLayout(node.address, node.partition) for node in cluster.nodes.values()}
        self.nodes = {name: node.partition for name, node in self._layout.items()}

    def active(self) -> list[ActiveFault]:
        return self._store.read()

    def inject(self, fault: AnyFault) -> ActiveFault | None:
        """Return None if there is nothing to undo."""
        check_one(fault, self.nodes)
        with self._store.locked() as others:
            now = self._states(others)
            if not stays_active(fault):
                self._run(immediate_actions(fault, now, self._layout))
                return None
            return self._activate(fault, now, others)

    def undo(self, number: int) -> ActiveFault:
        with self._store.locked() as active:
            found = next((entry for entry in active if entry.id == number), None)
            if found is None:
                raise Rejected(f"fault {number} is not active: `imex fault active` lists the active faults")
            rest = [entry for entry in active if entry is not found]
            self._run(changes(self._states(active), self._states(rest)))
            self._store.remove(number)
            return found

    @contextmanager
    def during(self, fault: AnyFault) -> Iterator[None]:
        injected = self.inject(fault)
        try:
            yield
        finally:
            if injected is not None:
                self.undo(injected.id)

    def _activate(self, fault: AnyFault, now: States, others: Sequence[ActiveFault]) -> ActiveFault:
        # Stored before the first action: if this process is killed in between, the fault can still be undone.
        added = self._store.add(fault, rfc3339(self._clock.now()))
        after = self._states([*others, added])
        try:
            self._run(changes(now, after))
        except ImexError:
            # All or nothing. Some actions have not happened, so undoing them may fail.
            for action in changes(after, now):
                with suppress(ImexError):
                    self._act(action)
            self._store.remove(added.id)
            raise
        return added

    def _states(self, active: Iterable[ActiveFault]) -> States:
        return states([entry.fault for entry in active], self._layout)

    def _run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case ControlProgram(name, program, node):
                self._cluster.ask(name, node=node, program=_PROGRAM_NAMES.get(program, program))
            case SetPower(node, on):
                self._cluster.ask("power-on" if on else "power-off", node=node)
            case SetProxy(node, behavior):
                self._cluster.ask("proxy", node=node, **msgspec.to_builtins(behavior))
            case SetFabric(node, fabric, partition):
                root = self._cluster.nodes[node].root
                root.write_hardware(structs.replace(root.hardware(), fabric=fabric, partition=partition))
            case SetNetwork(node, network):
                self._cluster.nodes[node].root.write_network(network)
            case LoadDriver(node, major, version):
                self._load_driver(node, major, version)

    def _load_driver(self, node: str, major: int, version: str) -> None:
        root = self._cluster.nodes[node].root
        root.load_driver(major)
        if version:
            root.write_hardware(structs.replace(root.hardware(), driver_version=version))
