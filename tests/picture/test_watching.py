"""What is watched becomes a scene, letters stay where they are, and a condition is looked at on every change."""

import asyncio

import msgspec

from imex_dra.picture.watching import Watching
from tests.controller.claims import domain
from tests.picture.test_observed import node


async def test_letters_are_given_in_order_and_never_move() -> None:
    watching = Watching()
    first, second = domain("one"), domain("two")
    watching.domains.upsert(first)
    watching.domains.upsert(second)
    watching.domains.remove(first)
    watching.domains.upsert(domain("three"))
    assert [(shown.letter, shown.name) for shown in watching.scene().domains] == [("B", "two"), ("C", "three")]


async def test_an_update_takes_no_letter() -> None:
    watching = Watching()
    first = domain("one")
    watching.domains.upsert(first)
    newer = msgspec.structs.replace(first.metadata, resource_version="2")
    watching.domains.upsert(msgspec.structs.replace(first, metadata=newer))
    watching.domains.upsert(domain("two"))
    assert [shown.letter for shown in watching.scene().domains] == ["A", "B"]


async def test_a_condition_is_waited_for() -> None:
    watching = Watching()
    waiting = asyncio.create_task(watching.until(lambda seen: len(seen.nodes) == 2, within=60))
    for name in ("n0", "n1"):
        await asyncio.sleep(0)
        watching.nodes.upsert(node(name))
    assert await waiting


async def test_a_condition_that_never_comes_is_false_when_the_time_is_over() -> None:
    assert not await Watching().until(lambda seen: bool(seen.nodes), within=0.01)
