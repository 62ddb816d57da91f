"""The controllers and the scheduler of the embedded control plane: one loop, started by every change.

A pass compares what is with what should be, so it does not matter which change started it. It runs when a kind
that concerns it has changed, garbage collection when something may have become garbage, and all of them every few
seconds for what depends on the time. Changes of Events and Leases start none.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from imex_sandbox.embedded.claims import create_claims, release_claims
from imex_sandbox.embedded.clusterroles import aggregate
from imex_sandbox.embedded.events import for_each
from imex_sandbox.embedded.garbage import collect, waits_for_dependents
from imex_sandbox.embedded.kinds import EVENTS, LEASES, NAMESPACES, SERVICE_ACCOUNTS
from imex_sandbox.embedded.mpijobs import follow_mpi_jobs
from imex_sandbox.embedded.nodelifecycle import delete_pods_of_missing_nodes, evict_pods, follow_nodes
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.scheduler import schedule
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Change, Key, Stored, owners
from imex_sandbox.embedded.workloads import follow_jobs, follow_stateful_sets

log = structlog.get_logger()

_PERIOD = 5.0
"""Seconds after which everything is looked at, for what depends on the time: silent nodes, the end of a grace."""
_GARBAGE = "garbage"
"""Something was deleted, waits for its dependents, has other owners, or is in a namespace that is deleted."""
_PAUSE = 0.02
"""Seconds in which changes are collected before they are looked at."""


class Controllers:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._wake = asyncio.Event()
        self._changed: set[str] = set()
        """Plural names of kinds."""
        objects.storage.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.kind in (EVENTS, LEASES):
            return
        before, after = change.old, change.new
        is_gone = after is None or waits_for_dependents(after.document)
        if is_gone or change.kind is NAMESPACES or _owners(after) != _owners(before):
            self._changed.add(_GARBAGE)
        self._changed.add(change.kind.plural)
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            await asyncio.sleep(_PAUSE)
            is_due = loop.time() >= due
            if is_due:
                due = loop.time() + _PERIOD
            self._wake.clear()
            # What a pass changes concerns the passes after it in this turn, and those before it in the next.
            seen = self._changed
            self._changed = set()
            for work, kinds in self._passes():
                if not is_due and kinds.isdisjoint(seen | self._changed):
                    continue
                try:
                    work()
                except Exception:
                    # A controller that fails must not stop the others.
                    log.exception("a controller failed")
                await asyncio.sleep(0)

    def _passes(self) -> list[tuple[Callable[[], object], frozenset[str]]]:
        """Each with the kinds that concern it."""
        objects = self._objects
        collected = tuple(kind for kind in objects.kinds if kind not in (EVENTS, LEASES))
        devices = ("resourceclaims", "resourceslices", "deviceclasses")
        return [
            (lambda: follow_nodes(objects, objects.now()), frozenset({"nodes"})),
            (lambda: evict_pods(objects, objects.now()), frozenset({"nodes", "pods"})),
            (lambda: aggregate(objects), frozenset({"clusterroles"})),
            (lambda: create_service_accounts(objects), frozenset({"namespaces", "serviceaccounts"})),
            (lambda: follow_mpi_jobs(objects), frozenset({"mpijobs", "jobs", "pods"})),
            (lambda: follow_jobs(objects), frozenset({"jobs", "pods"})),
            (lambda: follow_stateful_sets(objects), frozenset({"statefulsets", "pods"})),
            (lambda: release_claims(objects), frozenset({"resourceclaims", "pods"})),
            (lambda: create_claims(objects), frozenset({"resourceclaimtemplates", "pods"})),
            (lambda: schedule(objects), frozenset({"nodes", "pods", *devices})),
            (lambda: delete_pods_of_missing_nodes(objects), frozenset({"nodes", "pods"})),
            (lambda: collect(objects, collected), frozenset({_GARBAGE})),
        ]


def _owners(stored: Stored | None) -> list[str]:
    return list(owners(stored.document)) if stored else []


def create_service_accounts(objects: Objects) -> None:
    for_each(objects, NAMESPACES, "serviceaccount-controller", lambda key, one: _create_account(objects, key, one))


def _create_account(objects: Objects, key: Key, namespace: Json) -> None:
    is_there = objects.storage.get(SERVICE_ACCOUNTS, Key(key.name, "default")) is not None
    if not is_there and not namespace["metadata"].get("deletionTimestamp"):
        body = {"metadata": {"name": "default"}}
        objects.create(SERVICE_ACCOUNTS, key.name, body, "embedded-controllers")
