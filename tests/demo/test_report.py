"""The table at the end, the sentence, and the JSON for machines."""

import json

from imex_dra.picture.ink import plain
from imex_dra.sandbox.demo.report import Check, ClaimRow, Report, StepReport, table

GOOD = Check("nodes are Ready", True, "36 of 36")
BAD = Check("one channel", False, "channel 1, 2")


def report(*steps: StepReport) -> Report:
    return Report(steps, 12.3, "/state/logs", (ClaimRow("c", ("p",), "allocated,reserved", "n0", "u.1", 1),))


def test_the_table_has_a_line_for_each_check_and_a_verdict() -> None:
    told = report(StepReport("racks", 9.87, (GOOD, Check("daemons", True))), StepReport("clean-up", 1.0))
    assert (
        "\n" + plain(table(told))
        == """
racks               9.9 s  ok      nodes are Ready: 36 of 36
                           ok      daemons
clean-up            1.0 s          nothing was checked

all 2 checks are as they should be, 12 s"""
    )


def test_long_lines_are_wrapped_below_themselves() -> None:
    told = report(
        StepReport("stranger", 1.0, (Check("another", True, "it was exported on channel 1, not 2"), GOOD))
    )
    assert (
        "\n" + plain(table(told, width=60))
        == """
stranger            1.0 s  ok      another: it was exported
                                   on channel 1, not 2
                           ok      nodes are Ready: 36 of 36

all 2 checks are as they should be, 12 s"""
    )


def test_what_failed_is_named_in_one_sentence_with_the_place_of_the_logs() -> None:
    told = report(StepReport("racks", 9.87, (GOOD,)), StepReport("claims", 0.1, (BAD,)))
    assert (
        "\n" + plain(table(told))
        == """
racks               9.9 s  ok      nodes are Ready: 36 of 36
claims              0.1 s  FAILED  one channel: channel 1, 2

not as it should be: claims: one channel: channel 1, 2; logs: /state/logs"""
    )


def test_a_step_that_could_not_be_finished_is_a_failure_too() -> None:
    told = report(StepReport("MPIJob", 60.0, (GOOD,), failure="not Succeeded within 60 s"))
    assert not told.ok
    assert told.failure == "MPIJob: not Succeeded within 60 s"
    assert "FAILED  not Succeeded within 60 s" in plain(table(told))


def test_nothing_done_is_not_well_done() -> None:
    assert not report().ok


def test_json_says_the_same() -> None:
    told = json.loads(report(StepReport("racks", 9.87, (GOOD,)), StepReport("claims", 0.1, (BAD,))).as_json())
    assert told == {
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
    fine = json.loads(report(StepReport("racks", 9.87, (GOOD,))).as_json())
    assert (fine["ok"], fine["failure"]) == (True, None)
