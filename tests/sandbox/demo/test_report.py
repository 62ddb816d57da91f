"""The report of the demo: a table, one sentence for a failure, and JSON."""

import json

from imex_dra.picture.text import plain
from imex_sandbox.demo.report import Check, ClaimRow, Report, StepReport, table

GOOD = Check("nodes are Ready", True, "36 of 36")
BAD = Check("one channel", False, "channel 1, 2")


def report(*steps: StepReport) -> Report:
    return Report(steps, 12.3, "/state/logs", (ClaimRow("c", ("p",), "allocated,reserved", "n0", "u.1", 1),))


def test_the_table_has_a_line_for_each_check_and_a_conclusion() -> None:
    shown = report(StepReport("racks", 9.87, (GOOD, Check("daemons", True))), StepReport("cleanup", 1.0))
    assert (
        "\n" + plain(table(shown))
        == """
racks               9.9 s  ok      nodes are Ready: 36 of 36
                           ok      daemons
cleanup             1.0 s          nothing was checked

all 2 checks passed in 12 s"""
    )


def test_long_lines_are_wrapped_in_their_column() -> None:
    shown = report(
        StepReport("isolation", 1.0, (Check("another", True, "it was exported on channel 1, not 2"), GOOD))
    )
    assert (
        "\n" + plain(table(shown, width=60))
        == """
isolation           1.0 s  ok      another: it was exported
                                   on channel 1, not 2
                           ok      nodes are Ready: 36 of 36

all 2 checks passed in 12 s"""
    )


def test_the_conclusion_names_the_failure_and_the_logs() -> None:
    shown = report(StepReport("racks", 9.87, (GOOD,)), StepReport("claims", 0.1, (BAD,)))
    assert (
        "\n" + plain(table(shown))
        == """
racks               9.9 s  ok      nodes are Ready: 36 of 36
claims              0.1 s  FAILED  one channel: channel 1, 2

failed: claims: one channel: channel 1, 2; logs: /state/logs"""
    )


def test_a_step_that_was_not_completed_is_a_failure() -> None:
    shown = report(StepReport("MPIJob", 60.0, (GOOD,), failure="not Succeeded within 60 s"))
    assert not shown.ok
    assert shown.failure == "MPIJob: not Succeeded within 60 s"
    assert "FAILED  not Succeeded within 60 s" in plain(table(shown))


def test_a_report_without_steps_is_not_ok() -> None:
    assert not report().ok


def test_the_json_has_the_same_content() -> None:
    shown = json.loads(report(StepReport("racks", 9.87, (GOOD,)), StepReport("claims", 0.1, (BAD,))).as_json())
    assert shown == {
        "ok": False,
        "failure": "claims: one channel: channel 1, 2",
        "checks": 2,
        "steps": [
            {
                "name": "racks",
                "seconds": 9.87,
                "checks": [{"what": "nodes are Ready", "ok": True, "found": "36 of 36"}],
            },
            {
                "name": "claims",
                "seconds": 0.1,
                "checks": [{"what": "one channel", "ok": False, "found": "channel 1, 2"}],
            },
        ],
        "seconds": 12.3,
        "logs": "/state/logs",
        "claims": [
            {
                "name": "c",
                "pods": ["p"],
                "state": "allocated,reserved",
                "node": "n0",
                "partition": "u.1",
                "channel": 1,
            }
        ],
    }
    passed = json.loads(report(StepReport("racks", 9.87, (GOOD,))).as_json())
    assert (passed["ok"], passed["failure"]) == (True, None)
