"""Random faults in a domain of 18 daemons: the connectivity table must follow a model."""

import random
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.sandbox.softimex.rack import Equal, Rack
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZE = 18
FAULTS = 6

Operation = tuple[str, int, int]


class Model:
    """The expected connectivity table. The grace time is unlimited, so a lost peer stays RECOVERING.

    `connections[i][j]` is the letter that the row of node i must show for node j.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.running = set(range(size))
        self.hung: set[int] = set()
        self.blocked: set[tuple[int, int]] = set()
        self.connections = [["C"] * size for _ in range(size)]

    def rows(self) -> list[str]:
        """A node that does not run or hangs does not reply, so its row is invalid."""
        replying = self.running - self.hung
        return [
            "".join(row) if index in replying else "I" * self.size for index, row in enumerate(self.connections)
        ]

    def apply(self, operation: Operation) -> None:
        name, one, two = operation
        effects: dict[str, Callable[[], None]] = {
            "kill": lambda: self._remove(one),
            "stop": lambda: self._shut_down(one),
            "start": lambda: self._start(one),
            "move": lambda: self._move(one),
            "hang": lambda: self.hung.add(one),
            "resume": lambda: self.hung.discard(one),
            "block": lambda: self.blocked.add((one, two)),
            "unblock": lambda: self.blocked.discard((one, two)),
        }
        effects[name]()
        self._settle()

    def choices(self) -> Iterator[Operation]:
        """The possible next operations.

        No daemon shuts down while another one hangs: whether the hung one gets the message is a race.
        """
        responsive = sorted(self.running - self.hung)
        if len(self.running) > 2:
            yield from (("kill", index, 0) for index in self.running)
            if not self.hung:
                yield from ((name, index, 0) for index in responsive for name in ("stop", "move"))
                yield from (("hang", index, 0) for index in responsive)
        yield from (("start", index, 0) for index in range(self.size) if index not in self.running)
        yield from (("resume", index, 0) for index in self.hung)
        yield from (("block", one, two) for one in responsive for two in responsive if one < two)
        yield from (("unblock", one, two) for one, two in self.blocked)

    def choose(self, rng: random.Random) -> Operation:
        """Choose a kind of operation first, so that each kind is equally likely."""
        by_name: dict[str, list[Operation]] = {}
        for operation in self.choices():
            by_name.setdefault(operation[0], []).append(operation)
        return rng.choice(by_name[rng.choice(sorted(by_name))])

    def _remove(self, index: int) -> None:
        self.running.discard(index)
        self.hung.discard(index)

    def _shut_down(self, index: int) -> None:
        for other in self.running - {index}:
            if self._reaches(other, index):
                self.connections[other][index] = "D"
        self._remove(index)

    def _move(self, index: int) -> None:
        self._shut_down(index)
        self._start(index)

    def _start(self, index: int) -> None:
        self.running.add(index)
        self.connections[index] = ["N"] * self.size
        self.connections[index][index] = "C"

    def _settle(self) -> None:
        for one in self.running - self.hung:
            for two in set(range(self.size)) - {one}:
                if self._reaches(one, two):
                    self.connections[one][two] = "C"
                elif self.connections[one][two] == "C":
                    self.connections[one][two] = "R"

    def _reaches(self, one: int, two: int) -> bool:
        blocked = (min(one, two), max(one, two)) in self.blocked
        return {one, two} <= self.running and two not in self.hung and not blocked


class Faults:
    """Applies the operations of the model to real daemons."""

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._moves = 0
        self._blocked: dict[int, set[int]] = {}

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
            case "block" | "unblock":
                self._blocked.setdefault(one, set()).symmetric_difference_update({two})
                self._write_network(one)

    def _write_network(self, index: int) -> None:
        blocked = (self._rack.nodes[other] for other in self._blocked[index])
        self._rack.nodes[index].block_network_to(*blocked)

    def _move(self, index: int) -> None:
        """Restart a daemon at another address, which the others learn from their hosts files and SIGUSR1."""
        node = self._rack.nodes[index]
        node.stop()
        self._moves += 1
        node.address = f"127.{self._rack.net}.{100 + self._moves}"
        (node.root / "addresses").write_text(f"{node.address}\n")
        node.write_config(IMEX_CMD_BIND_INTERFACE_IP=node.address)
        self._rack.map({other.index: other.address for other in self._rack.nodes})
        for other in self._blocked:
            self._write_network(other)
        node.start()
        for running in self._rack.nodes:
            if running.process and running is not node:
                running.send(signal.SIGUSR1)


def test_the_connectivity_table_follows_the_faults(make_rack: Callable[[int], Rack]) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng, model, rack = random.Random(seed), Model(SIZE), make_rack(SIZE)
    faults, history = Faults(rack), list[Operation]()
    rack.start()
    for _ in range(FAULTS):
        operation = model.choose(rng)
        history.append(operation)
        faults.apply(operation)
        model.apply(operation)
        until(lambda: Equal(rack.letters(seconds=2), model.rows()), what=f"seed {seed}, {history}")
