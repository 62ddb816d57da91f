import pytest

from imex_dra.sandbox.kubernetes import probes
from imex_dra.sandbox.kubernetes.probes import Probe
from tests.sandbox.account import NodeAccount

ROOT = Probe("root", "", curable=False)
NO_ROOT = Probe("root", "run as root", curable=False)
NOT_BUILT = Probe("containerd", "run `make kube` to build it", curable=True)


def account(monkeypatch: pytest.MonkeyPatch, *found: Probe, ran: int = 0) -> NodeAccount:
    monkeypatch.setattr(probes, "probes", lambda: found)
    made = NodeAccount()
    made.asked, made.ran = True, ran
    return made


def test_a_run_with_everything_says_how_much_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    assert account(monkeypatch, ROOT, ran=3).verdict() == "ran: 3 passed"


def test_what_the_machine_does_not_allow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    without_root = account(monkeypatch, NO_ROOT)
    assert without_root.verdict() == "left out because of: root"
    assert not without_root.failure()


def test_what_the_machine_could_have_must_not_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the run failed" in account(monkeypatch, ROOT, NOT_BUILT).verdict()


def test_nothing_run_for_no_reason_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing ran" in account(monkeypatch, ROOT, ran=0).failure()
