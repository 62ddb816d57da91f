"""Chance of our own: the generator that `random` shares belongs to whoever seeds it, as property tests do."""

import random

fraction = random.SystemRandom().random
"""From [0, 1)."""
