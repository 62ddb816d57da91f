"""Faults in a running cluster: begun, written down, undone."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec import structs

from imex_dra.base.clock import Clock, SystemClock, rfc3339
from imex_dra.base.errors import ImexError, Rejected
from imex_dra.sandbox.cluster.handle import Cluster
from imex_dra.sandbox.faults.effects import (
    Action,
    Behave,
    Do,
    Load,
    Place,
    Power,
    SetFabric,
    SetNetwork,
    States,
    changes,
    happening,
    stands,
    states,
)
from imex_dra.sandbox.faults.kinds import AnyFault
from imex_dra.sandbox.faults.record import Record, Standing
from imex_dra.sandbox.faults.script import check_one

_CALLED = {"apiserver": "kube-apiserver"}
"""What the cluster calls a program, where that is not what people call it."""


class Injector:
    def __init__(self, cluster: Cluster, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._record = Record(cluster.places.run)
        self._layout = {node.name: Place(node.address, node.partition) for node in cluster.nodes.values()}
        self.nodes = {name: place.partition for name, place in self._layout.items()}

    def standing(self) -> list[Standing]:
        return self._record.read()

    def begin(self, fault: AnyFault) -> Standing | None:
        """None if there is nothing to undo. Written down first: whatever ends us, it can be undone."""
        check_one(fault, self.nodes)
        with self._record.held() as others:
            now = self._states(others)
            if not stands(fault):
                self._do(happening(fault, now, self._layout))
                return None
            return self._stand(fault, now, others)

    def undo(self, number: int) -> Standing:
        with self._record.held() as standing:
            found = next((entry for entry in standing if entry.id == number), None)
            if found is None:
                raise Rejected(f"no fault {number} stands: `imex fault standing` lists those that do")
            rest = [entry for entry in standing if entry is not found]
            self._do(changes(self._states(standing), self._states(rest)))
            self._record.remove(number)
            return found

    @contextmanager
    def during(self, fault: AnyFault) -> Iterator[None]:
        begun = self.begin(fault)
        try:
            yield
        finally:
            if begun is not None:
                self.undo(begun.id)

    def _stand(self, fault: AnyFault, now: States, others: Sequence[Standing]) -> Standing:
        """As a whole or not at all."""
        fresh = self._record.add(fault, rfc3339(self._clock.now()))
        after = self._states([*others, fresh])
        try:
            self._do(changes(now, after))
        except ImexError:
            for action in changes(after, now):
                with suppress(ImexError):
                    self._act(action)
            self._record.remove(fresh.id)
            raise
        return fresh

    def _states(self, standing: Iterable[Standing]) -> States:
        return states([entry.fault for entry in standing], self._layout)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Do(verb, program, node):
                self._cluster.ask(verb, node=node, program=_CALLED.get(program, program))
            case Power(node, on):
                self._cluster.ask("power-on" if on else "power-off", node=node)
            case Behave(node, conduct):
                self._cluster.ask("gateway", node=node, **msgspec.to_builtins(conduct))
            case SetFabric(node, fabric, partition):
                root = self._cluster.nodes[node].root
                root.write_hardware(structs.replace(root.hardware(), fabric=fabric, partition=partition))
            case SetNetwork(node, network):
                self._cluster.nodes[node].root.write_network(network)
            case Load(node, major, version):
                self._load(node, major, version)

    def _load(self, node: str, major: int, version: str) -> None:
        root = self._cluster.nodes[node].root
        root.load_driver(major)
        if version:
            root.write_hardware(structs.replace(root.hardware(), driver_version=version))
