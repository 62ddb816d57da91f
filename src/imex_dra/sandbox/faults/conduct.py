"""How a node's line to the API server behaves, as a function of the faults that stand on it. Pure."""

from collections.abc import Iterable
from enum import Enum, auto

from msgspec import Struct

from imex_dra.sandbox.faults.kinds import CutApi, ExpireWatches, FailApi, Fault, ThrottleApi, seconds

_REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
_ALMOST_ONE = 1 - 1e-9


class Manner(Enum):
    SPLICE = auto()
    """Bytes pass as they are."""
    INTERCEPT = auto()
    """Requests are read, and some answered in the API server's place."""
    REFUSE = auto()


class Answer(Struct, frozen=True):
    """What a share of the requests gets instead of the API server's."""

    code: int
    share: float
    retry_after: int | None = None

    @property
    def reason(self) -> str:
        return _REASONS.get(self.code, "InternalError")


class Conduct(Struct, frozen=True):
    refused: bool = False
    silent: bool = False
    answers: tuple[Answer, ...] = ()
    watch_seconds: float | None = None
    """How long a watch lives before it is told 410."""

    @property
    def manner(self) -> Manner:
        if self.refused:
            return Manner.REFUSE
        return Manner.INTERCEPT if self.answers or self.watch_seconds is not None else Manner.SPLICE


def conduct(standing: Iterable[Fault]) -> Conduct:
    """Several faults on one line add up; the worst comes first."""
    faults = list(standing)
    cuts = [fault for fault in faults if isinstance(fault, CutApi)]
    lives = [seconds(fault.every) for fault in faults if isinstance(fault, ExpireWatches)]
    return Conduct(
        refused=any(cut.refuse for cut in cuts),
        silent=any(not cut.refuse for cut in cuts),
        answers=tuple(_answer(fault) for fault in faults if isinstance(fault, FailApi | ThrottleApi)),
        watch_seconds=min(lives, default=None),
    )


def _answer(fault: FailApi | ThrottleApi) -> Answer:
    if isinstance(fault, ThrottleApi):
        return Answer(429, fault.share, fault.retry_after)
    return Answer(fault.code, fault.share)


class Turns:
    """Which request gets which answer: an even share, without chance, so that a script does the same again."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._owed = dict.fromkeys(answers, 0.0)

    def next(self) -> Answer | None:
        """The answer for the next request, or None: it is the API server's."""
        for answer in self._owed:
            self._owed[answer] += answer.share
        due = next((answer for answer, owed in self._owed.items() if owed >= _ALMOST_ONE), None)
        if due is not None:
            self._owed[due] -= 1
        return due
