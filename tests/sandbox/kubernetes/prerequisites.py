"""The prerequisites of a real node, and a pytest plugin that skips tests marked `node` where they are not met.

A prerequisite is fixable if this project can fulfill it by building or downloading something. A run fails if it
skips tests because of a fixable prerequisite. After a prerequisite that is not met and not fixable, no further
one is checked, so that nothing is downloaded without need.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from imex_dra.base.errors import ImexError, Misconfigured
from imex_sandbox.kubernetes import binaries, cgroups, images, packages
from tests.sandbox.kubernetes import driverimage

_UNSHARE = "unshare --pid --mount --net --uts --ipc --fork --mount-proc true"
_CREATE_INTERFACES = """
"$0" link add end0 type veth peer name end1 &&
"$0" link add br0 type bridge &&
"$0" link set end0 master br0
"""

# The mark is a user property, because those are part of a report that an xdist worker sends. The keywords of a
# report would not do: they contain the names of folders, and one of them is called node.
_NODE_TEST = ("needs a real node", True)


class Prerequisite(NamedTuple):
    """`problem` is empty if the prerequisite is met."""

    name: str
    problem: str
    fixable: bool


class _Check(NamedTuple):
    name: str
    run: Callable[[], object]
    fixable: bool = False


@cache
def check_prerequisites() -> tuple[Prerequisite, ...]:
    return tuple(_check_all())


def _check_all() -> Iterator[Prerequisite]:
    for name, run, fixable in _checks():
        problem = _problem(run)
        yield Prerequisite(name, problem, fixable)
        if problem and not fixable:
            return


def _checks() -> list[_Check]:
    has_apt = packages.has_apt()
    kubernetes = (*binaries.CONTROL_PLANE, *binaries.TOOLS, "kubelet")
    return [
        _Check("root", _check_root),
        _Check("namespaces", lambda: _run(*_UNSHARE.split())),
        _Check("bridges and veths", lambda: _run("unshare", "--net", "sh", "-c", _CREATE_INTERFACES, _ip())),
        _Check("overlay file system", _check_overlay),
        _Check("cgroups", cgroups.check),
        _Check("Kubernetes", lambda: binaries.require(kubernetes), fixable=True),
        _Check("containerd", lambda: binaries.require(binaries.RUNTIME), fixable=True),
        _Check("runc", lambda: _run(packages.runc(), "--version"), fixable=has_apt),
        _Check("CNI plugins", packages.cni_plugins, fixable=has_apt),
        _Check("images pause and busybox", lambda: (images.pause(), images.busybox()), fixable=has_apt),
        _Check("image of the driver", driverimage.build, fixable=has_apt),
    ]


def _problem(run: Callable[[], object]) -> str:
    try:
        run()
    except (ImexError, OSError) as error:
        return str(error)
    return ""


def _check_root() -> None:
    if os.geteuid() != 0:
        raise Misconfigured("a kubelet requires root: run the tests as root")


def _check_overlay() -> None:
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise Misconfigured("the kernel does not support overlay file systems: load the module overlay")


def _ip() -> Path:
    return binaries.find("ip")


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"{argv[0]} failed: {done.stderr.strip()}")


class NodeTests:
    """The plugin. Its summary lists all prerequisites, and the run fails if a test was skipped without need."""

    def __init__(self, check: Callable[[], Sequence[Prerequisite]] = check_prerequisites) -> None:
        self.selected = False
        self.passed = 0
        self._check = check

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Last, because deselected tests must not cause a check.
        tests = [item for item in items if item.get_closest_marker("node")]
        self.selected = bool(tests)
        for item in tests:
            item.user_properties.append(_NODE_TEST)
        for prerequisite in self._unmet()[:1] if tests else []:
            for item in tests:
                item.add_marker(pytest.mark.skip(reason=f"no real node here: {_status(prerequisite)}"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if _NODE_TEST in report.user_properties:
            self.selected = True
            self.passed += report.when == "call" and report.outcome == "passed"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.selected and self.failure() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.selected:
            return
        terminalreporter.section("prerequisites of real nodes")
        for prerequisite in self._check():
            terminalreporter.write_line(f"{prerequisite.name:34}{_status(prerequisite)}")
        terminalreporter.write_line(f"{'tests on real nodes':34}{self.summary()}")

    def summary(self) -> str:
        if unmet := self._unmet():
            return f"skipped because of: {', '.join(one.name for one in unmet)}{self.failure()}"
        return f"{self.passed} passed{self.failure()}"

    def failure(self) -> str:
        unmet = self._unmet()
        if any(prerequisite.fixable for prerequisite in unmet):
            return ". This machine can meet the prerequisites, so the run failed"
        if unmet or self.passed:
            return ""
        return ". No test ran although all prerequisites are met, so the run failed"

    def _unmet(self) -> list[Prerequisite]:
        return [prerequisite for prerequisite in self._check() if prerequisite.problem]


def _status(prerequisite: Prerequisite) -> str:
    return prerequisite.problem.splitlines()[0] if prerequisite.problem else "ok"
