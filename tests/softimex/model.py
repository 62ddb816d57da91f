"""What the connectivity matrix of a domain must become, fault by fault, when no grace time ends."""

import random
from collections.abc import Callable, Iterator

Operation = tuple[str, int, int]


class Model:
    """Nodes by slot; `links[i][j]` is the letter that node i's row must show for node j."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.running = set(range(size))
        self.hung: set[int] = set()
        self.cuts: set[tuple[int, int]] = set()
        self.links = [["C"] * size for _ in range(size)]

    def rows(self) -> list[str]:
        """Who does not run, or hangs, has a row of its own that nobody can read."""
        legible = self.running - self.hung
        return ["".join(row) if slot in legible else "I" * self.size for slot, row in enumerate(self.links)]

    def apply(self, operation: Operation) -> None:
        name, one, two = operation
        effects: dict[str, Callable[[], None]] = {
            "kill": lambda: self._leave(one),
            "stop": lambda: self._say_goodbye(one),
            "start": lambda: self._join(one),
            "move": lambda: self._move(one),
            "hang": lambda: self.hung.add(one),
            "resume": lambda: self.hung.discard(one),
            "cut": lambda: self.cuts.add((one, two)),
            "mend": lambda: self.cuts.discard((one, two)),
        }
        effects[name]()
        self._settle()

    def choices(self) -> Iterator[Operation]:
        """What may happen next. While somebody hangs, others don't say goodbye: whether it hears is chance."""
        awake = sorted(self.running - self.hung)
        if len(self.running) > 2:
            yield from (("kill", slot, 0) for slot in self.running)
            if not self.hung:
                yield from ((name, slot, 0) for slot in awake for name in ("stop", "move"))
                yield from (("hang", slot, 0) for slot in awake)
        yield from (("start", slot, 0) for slot in range(self.size) if slot not in self.running)
        yield from (("resume", slot, 0) for slot in self.hung)
        yield from (("cut", one, two) for one in awake for two in awake if one < two)
        yield from (("mend", one, two) for one, two in self.cuts)

    def choose(self, chance: random.Random) -> Operation:
        """Every kind of operation is as likely as any other."""
        by_name: dict[str, list[Operation]] = {}
        for operation in self.choices():
            by_name.setdefault(operation[0], []).append(operation)
        return chance.choice(by_name[chance.choice(sorted(by_name))])

    def _leave(self, slot: int) -> None:
        self.running.discard(slot)
        self.hung.discard(slot)

    def _say_goodbye(self, slot: int) -> None:
        for other in self.running - {slot}:
            if self._reach(other, slot):
                self.links[other][slot] = "D"
        self._leave(slot)

    def _move(self, slot: int) -> None:
        self._say_goodbye(slot)
        self._join(slot)

    def _join(self, slot: int) -> None:
        self.running.add(slot)
        self.links[slot] = ["N"] * self.size
        self.links[slot][slot] = "C"

    def _settle(self) -> None:
        for one in self.running - self.hung:
            for two in set(range(self.size)) - {one}:
                if self._reach(one, two):
                    self.links[one][two] = "C"
                elif self.links[one][two] == "C":
                    self.links[one][two] = "R"

    def _reach(self, one: int, two: int) -> bool:
        cut = (min(one, two), max(one, two)) in self.cuts
        return {one, two} <= self.running and two not in self.hung and not cut
