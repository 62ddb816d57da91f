"""`python -m tests.sandbox.simulation.broken PART`: a short seed in which this part raises an error that nothing
expects. Prints what the seed failed with.
"""

import asyncio
import sys
from typing import Any

import click

from imex_dra.controller import computedomains
from imex_dra.node.prepare import ClaimPreparer
from imex_sandbox.simulation import node
from imex_sandbox.simulation.invariants import Invariants
from imex_sandbox.simulation.refusals import Refusals
from imex_sandbox.simulation.run import Story, simulate


def fail(*args: Any, **options: Any) -> Any:
    raise TypeError("broken")


async def fail_later(*args: Any) -> None:
    await asyncio.sleep(5)
    raise TypeError("broken")


PARTS = {
    "a task of imex node": (node, "follow_lasting_facts", fail_later),
    "a reconcile": (computedomains, "domain_status", fail),
    "a prepare": (ClaimPreparer, "prepare", fail_later),
    "an unprepare": (ClaimPreparer, "unprepare", fail_later),
    "an invariant": (Invariants, "_check_peers", fail),
    "the check of a refusal": (Refusals, "check", fail),
}

if __name__ == "__main__":
    owner, name, broken = PARTS[sys.argv[1]]
    setattr(owner, name, broken)
    outcome = simulate(Story(1, 3600.0, None, 30.0))
    click.echo(f"{outcome.name}: {outcome.problem}")
