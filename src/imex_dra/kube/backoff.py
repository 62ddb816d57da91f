"""How long to wait before the next try: doubling, with jitter, so that a crowd does not return at once."""

from collections.abc import Callable
from dataclasses import dataclass

from imex_dra.base.chance import fraction


@dataclass(frozen=True, slots=True)
class Backoff:
    first: float
    limit: float
    jitter: Callable[[], float] = fraction
    """From [0, 1); half of every delay is random."""

    def delay(self, failures: int) -> float:
        """For the given number of failures in a row, one at least."""
        exponent = min(max(failures, 1) - 1, 60)
        full = min(self.limit, self.first * 2.0**exponent)
        return full * (0.5 + 0.5 * self.jitter())
