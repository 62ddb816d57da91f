"""A pytest plugin: leaves tests marked `node` out where they can't run, and accounts for it at the end.

The run fails if something was left out that this machine could have had.
"""

import pytest

from imex_dra.sandbox.kubernetes import probes

_MARK = ("a test on a real node", True)
"""Travels with a report, from a worker of xdist too; its keywords would also match a folder called node."""


class NodeAccount:
    def __init__(self) -> None:
        self.asked = False
        self.ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Last, so that what is deselected asks nothing of the machine."""
        ours = [item for item in items if item.get_closest_marker("node")]
        self.asked = bool(ours)
        for item in ours:
            item.user_properties.append(_MARK)
        for obstacle in probes.obstacles()[:1] if ours else []:
            for item in ours:
                item.add_marker(pytest.mark.skip(reason=f"no real node here: {_reason(obstacle)}"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if _MARK in report.user_properties:
            self.asked = True
            self.ran += report.when == "call" and report.outcome == "passed"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.asked and self.failure() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.asked:
            return
        terminalreporter.section("what a real node needs")
        for probe in probes.probes():
            terminalreporter.write_line(f"{probe.part:34}{_reason(probe)}")
        terminalreporter.write_line(f"{'tests on real nodes':34}{self.verdict()}")

    def verdict(self) -> str:
        left_out = probes.obstacles()
        if left_out:
            return f"left out because of: {', '.join(probe.part for probe in left_out)}{self.failure()}"
        return f"ran: {self.ran} passed{self.failure()}"

    def failure(self) -> str:
        left_out = probes.obstacles()
        if any(probe.curable for probe in left_out):
            return ". This machine could have them, so the run failed"
        return "" if left_out or self.ran else ". Nothing stood in the way and nothing ran, so the run failed"


def _reason(probe: probes.Probe) -> str:
    return probe.obstacle.splitlines()[0] if probe.obstacle else "there"
