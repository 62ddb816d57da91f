"""Safety conditions of the driver, broken one at a time: the simulation must notice each of them.

A mutation replaces one function or method of the driver by one that lacks a check. It says nothing about how the
check is made, so it must be kept up to date with the code that it patches.
"""

import importlib
from collections.abc import Callable
from multiprocessing import Pool
from typing import Any, NamedTuple

from imex_sandbox.simulation.run import Outcome, Story, simulate


class Mutation(NamedTuple):
    name: str
    module: str
    attribute: str
    """Dotted: a function, or a method of a class."""
    change: Callable[[Any], Any]
    """From the original to the broken one."""

    def apply(self) -> None:
        """For the rest of the process."""
        owner: Any = importlib.import_module(f"imex_dra.{self.module}")
        *path, name = self.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, self.change(getattr(owner, name)))


class Found(NamedTuple):
    seeds: int
    """How many were run until one failed, in the order of the seeds."""
    seen_as: str


def mutation_named(name: str) -> Mutation:
    return next(mutation for mutation in MUTATIONS if mutation.name == name)


def find(mutation: Mutation, stories: list[Story], jobs: int) -> Found | None:
    with Pool(jobs, mutation.apply) as pool:
        for number, outcome in enumerate(pool.imap(simulate, stories), start=1):
            if outcome.problem:
                return Found(number, seen_as(outcome))
    return None


def seen_as(outcome: Outcome) -> str:
    return outcome.name if outcome.name != "at rest" else outcome.problem.partition(": ")[2][:120]


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **options: value


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("a prepare ignores the fence", "node.prepared", "PreparedClaims._check_fence", _always(None)),
)
