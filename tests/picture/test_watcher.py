"""The watcher: stable letters, and conditions that are evaluated at every change."""

import asyncio

import msgspec

from imex_dra.picture.watcher import ClusterWatcher
from tests.controller.claims import domain
from tests.picture.test_snapshot import node


async def test_letters_are_assigned_in_order_and_never_change() -> None:
    watcher = ClusterWatcher()
    first, second = domain("one"), domain("two")
    watcher.domains.upsert(first)
    watcher.domains.upsert(second)
    watcher.domains.remove(first)
    watcher.domains.upsert(domain("three"))
    assert [(one.letter, one.name) for one in watcher.model().domains] == [("B", "two"), ("C", "three")]


async def test_an_update_does_not_use_another_letter() -> None:
    watcher = ClusterWatcher()
    first = domain("one")
    watcher.domains.upsert(first)
    newer = msgspec.structs.replace(first.metadata, resource_version="2")
    watcher.domains.upsert(msgspec.structs.replace(first, metadata=newer))
    watcher.domains.upsert(domain("two"))
    assert [one.letter for one in watcher.model().domains] == ["A", "B"]


async def test_until_returns_true_when_the_condition_is_met() -> None:
    watcher = ClusterWatcher()
    waiting = asyncio.create_task(watcher.until(lambda snapshot: len(snapshot.nodes) == 2, within=60))
    for name in ("n0", "n1"):
        await asyncio.sleep(0)
        watcher.nodes.upsert(node(name))
    assert await waiting


async def test_until_returns_false_after_the_timeout() -> None:
    assert not await ClusterWatcher().until(lambda snapshot: bool(snapshot.nodes), within=0.01)
