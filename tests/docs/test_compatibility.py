"""docs/compatibility.md: from reports of pytest to a page that leaves nothing out."""

import pytest

from tools import compatibility, controlplanes
from tools.testresults import Result, Selection, parse

REPORT = b"""<testsuites><testsuite errors="1" failures="1" skipped="2" tests="6">
<testcase name="test_a"/><testcase name="test_b"/>
<testcase name="test_c"><failure message="no">trace</failure></testcase>
<testcase name="test_d"><error message="set-up">trace</error></testcase>
<testcase name="test_e"><skipped message="needs 1.36"/></testcase>
<testcase name="test_f"><skipped message="needs 1.36"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_failures_and_skips_are_named() -> None:
    result = parse(REPORT, release="v1.34.10", date="2026-11-18")
    assert (result.passed, result.failed, result.skipped) == (2, 2, 2)
    assert result.remarks == ("failed: test_c", "failed: test_d", "skipped: needs 1.36")


def test_the_tests_of_a_suite_are_found_in_the_report_of_all_tests_by_path_and_marker() -> None:
    def case(module: str, *markers: str) -> str:
        properties = f'<properties><property name="markers" value="{" ".join(markers)}"/></properties>'
        return f'<testcase classname="{module}" name="test_a">{properties}</testcase>'

    cases = (
        case("tests.driver.test_channels", "timeout", "node"),
        case("tests.driver.test_channels", "kube"),
        case("tests.driver2.test_channels", "node"),
        case("tests.sandbox.kubernetes.test_node.TestClass"),
    )
    report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()

    def passed(selection: Selection) -> int:
        return parse(report, release="", date="", selection=selection).passed

    assert passed(Selection(["tests/driver"], "node")) == 1
    assert passed(Selection(["tests/driver"])) == 2
    assert passed(Selection(["tests/driver", "tests/sandbox/kubernetes/test_node.py"])) == 3
    assert passed(Selection(["tests/sandbox"], "kube")) == 0


@pytest.mark.timeout(60)
def test_the_report_of_a_test_has_its_markers(request: pytest.FixtureRequest) -> None:
    assert ("markers", "timeout") in request.node.user_properties


def test_programs_of_another_release_are_named() -> None:
    result = Result("", "2026-11-18", 3, 0, 0)
    same = dict.fromkeys(("kube-apiserver", "kubelet"), "v1.37.1")
    assert compatibility.with_programs(result, same) == Result("v1.37.1", "2026-11-18", 3, 0, 0)
    mixed = compatibility.with_programs(result, same | {"kubelet": "v1.36.4"})
    assert mixed.remarks == ("with kubelet v1.36.4",)


def test_the_page_has_a_column_for_each_version_and_says_what_was_not_run() -> None:
    results = {
        "driver": {"1.36": Result("v1.36.4", "2026-11-18", 30, 0, 0)},
        "client": {
            "1.34": Result("v1.34.1", "2026-11-17", 20, 1, 2, ("failed: test_watch", "skipped: needs 1.36")),
            "1.36": Result("v1.36.4", "2026-11-20", 23, 0, 0),
        },
    }
    lines = compatibility.page(results, "# Compatibility\n").splitlines()
    assert "| suite | v1.34.1 | v1.36.4 | v1.37.1 |" in lines
    assert "| The driver on real kubelets | not run | 30 passed | not run |" in lines
    assert (
        "| API client, watches, leader election | 20 passed, **1 failed**, 2 skipped | 23 passed | not run |"
        in lines
    )
    assert "| date | 2026-11-17 | 2026-11-18 to 2026-11-20 |  |" in lines
    assert lines[-2:] == [
        "- Kubernetes 1.34, API client, watches, leader election: failed: test_watch",
        "- Kubernetes 1.34, API client, watches, leader election: skipped: needs 1.36",
    ]


def test_the_page_in_the_tree_was_written_from_the_results() -> None:
    for path, content in compatibility.document().items():
        assert path.read_bytes() == content


def test_every_suite_of_racks_has_a_row_for_both_control_planes() -> None:
    results = {"demo": {"embedded": Result("", "2026-11-18", 3, 1, 0, ("failed: test_x",))}}
    lines = controlplanes.table(results).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == len(controlplanes.SUITES) + 2  # and the two lines of the header
    assert "| The demo (`tests/sandbox/demo`) | not run | 3 passed, **1 failed** (2026-11-18) |" in rows
    assert lines[-1] == "- embedded, The demo: failed: test_x"


def test_a_contract_runs_by_its_marker_and_racks_by_the_variable() -> None:
    assert controlplanes.selection("contract", "kubernetes").marker == "kube"
    assert controlplanes.selection("contract", "embedded").marker == "not kube"
    assert {controlplanes.selection("racks", one).marker for one in controlplanes.CONTROL_PLANES} == {"racks"}
