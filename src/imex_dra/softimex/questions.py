"""Questions to a peer that wait for their answers. Each gets exactly one, if only that the peer is lost."""

from collections.abc import Callable, Iterable

from imex_dra.softimex.frames import Message, number

Answered = Callable[[Message], None]


class Questions:
    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, tuple[Message, Answered]] = {}

    def add(self, question: Message, answered: Answered) -> Message:
        """The question as it has to be sent."""
        self._last += 1
        numbered = {**question, "ask": self._last}
        self._open[self._last] = (numbered, answered)
        return numbered

    def unanswered(self) -> Iterable[Message]:
        return [question for question, _ in self._open.values()]

    def answer(self, message: Message) -> None:
        _, answered = self._open.pop(number(message, "answer", 1, 2**62), (None, None))
        if answered:
            answered(message)

    def give_up(self, why: str) -> None:
        waiting, self._open = self._open, {}
        for _, answered in waiting.values():
            answered({"lost": why})
