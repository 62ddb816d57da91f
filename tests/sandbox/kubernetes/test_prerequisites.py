from tests.sandbox.kubernetes.prerequisites import NodeTests, Prerequisite

ROOT = Prerequisite("root", "", fixable=False)
NO_ROOT = Prerequisite("root", "run the tests as root", fixable=False)
NOT_BUILT = Prerequisite("containerd", "containerd was not found", fixable=True)


def node_tests(*prerequisites: Prerequisite, passed: int = 0) -> NodeTests:
    plugin = NodeTests(lambda: prerequisites)
    plugin.selected, plugin.passed = True, passed
    return plugin


def test_a_run_with_all_prerequisites_reports_the_number_of_passed_tests() -> None:
    plugin = node_tests(ROOT, passed=3)
    assert plugin.summary() == "3 passed"
    assert not plugin.failure()


def test_a_prerequisite_that_cannot_be_fixed_skips_the_tests() -> None:
    plugin = node_tests(NO_ROOT)
    assert plugin.summary() == "skipped because of: root"
    assert not plugin.failure()


def test_a_run_that_skips_tests_because_of_a_fixable_prerequisite_fails() -> None:
    assert "the run failed" in node_tests(ROOT, NOT_BUILT).summary()


def test_a_run_without_any_passed_test_fails_if_all_prerequisites_are_met() -> None:
    assert "No test ran" in node_tests(ROOT).failure()
