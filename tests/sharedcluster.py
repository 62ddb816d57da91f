"""One cluster for all tests of a scope, which ends with them.

A session fixture would end with the last test of the worker: two racks without any work take half a core, and the
tests after them would have one and a half.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import pytest

C = TypeVar("C")


def scope_of(nodeid: str) -> str:
    """Tests of one scope run in the same worker, one after the other."""
    file = nodeid.partition("::")[0]
    if "/racks/" in file:
        return "racks"
    folders = (folder for folder in ("tests/driver", "tests/policies") if file.startswith(f"{folder}/"))
    return next(folders, file)


class SharedCluster:
    """A plugin of pytest. A worker has one cluster at a time."""

    def __init__(self) -> None:
        self._scope = ""
        self._cluster: Any = None
        self._running = ExitStack()

    def get(self, request: pytest.FixtureRequest, start: Callable[[], AbstractContextManager[C]]) -> C:
        scope = scope_of(request.node.nodeid)
        if scope != self._scope:
            self._scope = scope
            self._cluster = self._running.enter_context(start())
        if self._cluster is None:
            pytest.fail(f"the cluster of {scope} has not started: see the first test that failed there")
        cluster: C = self._cluster
        return cluster

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._scope and scope_of(item.nodeid) != self._scope:
            self.pytest_sessionfinish()

    def pytest_sessionfinish(self) -> None:
        self._scope, self._cluster = "", None
        self._running.close()


SHARED_CLUSTER = SharedCluster()
