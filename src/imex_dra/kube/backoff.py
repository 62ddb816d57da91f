"""Exponential back-off with jitter, so that many clients do not retry at the same moment."""

import random
from collections.abc import Callable
from dataclasses import dataclass

# Not the generator of the `random` module: property tests seed it, and all jitter would then be the same.
_generator: random.Random = random.SystemRandom()


def random_fraction() -> float:
    """A random number in [0, 1)."""
    return _generator.random()


def jittered(period: float) -> float:
    """The period, up to a quarter shorter or longer: the programs of thousands of nodes must not read together."""
    return period * (0.75 + 0.5 * random_fraction())


def use_generator(generator: random.Random) -> None:
    """For simulations, which must be reproducible."""
    global _generator
    _generator = generator


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds."""

    first: float
    limit: float
    jitter: Callable[[], float] = random_fraction
    """A number in [0, 1). Half of every delay is fixed; the other half is multiplied by this number."""

    def delay(self, failures: int) -> float:
        """After this number of consecutive failures."""
        exponent = min(max(failures, 1) - 1, 60)
        full = min(self.limit, self.first * 2.0**exponent)
        return full * (0.5 + 0.5 * self.jitter())
