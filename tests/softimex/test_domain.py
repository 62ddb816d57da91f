"""Eighteen daemons, eighteen processes, eighteen addresses: the matrix follows a model through random faults."""

import random
import signal
from collections.abc import Callable

import pytest

from tests.softimex.model import Model, Operation
from tests.softimex.rack import Rack, eventually

pytestmark = pytest.mark.timeout(300)

SIZE = 18
FAULTS = 6


class Faults:
    """Does to real daemons what the model is told."""

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._moved = 0
        self._cuts: dict[int, set[int]] = {}

    def apply(self, operation: Operation) -> None:
        name, one, two = operation
        node = self._rack.nodes[one]
        match name:
            case "kill":
                node.kill()
            case "stop":
                node.stop()
            case "start":
                node.start()
            case "hang":
                node.send(signal.SIGSTOP)
            case "resume":
                node.send(signal.SIGCONT)
            case "move":
                self._move(one)
            case _:
                cut = self._cuts.setdefault(one, set())
                cut.symmetric_difference_update({two})
                node.cut(*(self._rack.nodes[other] for other in cut))

    def _move(self, slot: int) -> None:
        """To another address, which all others learn by their hosts files and a signal."""
        node = self._rack.nodes[slot]
        node.stop()
        self._moved += 1
        node.address = f"127.{self._rack.net}.{100 + self._moved}"
        (node.root / "addresses").write_text(f"{node.address}\n")
        node.write_config(IMEX_CMD_BIND_INTERFACE_IP=node.address)
        self._rack.map({other.slot: other.address for other in self._rack.nodes})
        for holder, cut in self._cuts.items():
            self._rack.nodes[holder].cut(*(self._rack.nodes[other] for other in cut))
        node.start()
        for other in self._rack.nodes:
            if other.process and other is not node:
                other.send(signal.SIGUSR1)


def test_the_matrix_follows_the_faults(make_rack: Callable[[int], Rack]) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance, model, rack = random.Random(seed), Model(SIZE), make_rack(SIZE)
    faults, history = Faults(rack), list[Operation]()
    rack.start()
    for _ in range(FAULTS):
        operation = model.choose(chance)
        history.append(operation)
        faults.apply(operation)
        model.apply(operation)
        eventually(
            lambda: rack.letters(seconds=2) == model.rows(),
            seen=lambda: f"seed {seed}, {history}: {differences(rack.letters(), model.rows())}",
        )


def differences(seen: list[str], expected: list[str]) -> list[str]:
    return [f"row {n}: {a}, not {b}" for n, (a, b) in enumerate(zip(seen, expected, strict=True)) if a != b]
