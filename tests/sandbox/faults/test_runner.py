"""When a script injects and undoes its faults, and what is left when it is stopped."""

import pytest

from imex_dra.base.errors import ImexError, Unavailable
from imex_sandbox.faults.kinds import AnyFault, BreakFabric, KillNode, RebootNode
from imex_sandbox.faults.runner import ScriptRunner
from imex_sandbox.faults.store import ActiveFault


class FakeInjector:
    """Injector, clock and stop event. Each action takes a second; `log` has its time and its node."""

    def __init__(self, *, stop_at: float = 1e9, not_undoable: tuple[int, ...] = ()) -> None:
        self.time = 0.0
        self.log: list[tuple[float, str]] = []
        self._stop_at = stop_at
        self._not_undoable = not_undoable
        self._active: list[ActiveFault] = []

    def wait(self, timeout: float) -> bool:
        self.time = min(self.time + timeout, max(self.time, self._stop_at))
        return self.time >= self._stop_at

    def inject(self, fault: AnyFault) -> ActiveFault | None:
        self.time += 1
        if not fault.lasts:
            return None
        self._active.append(ActiveFault(len(self._active), fault, ""))
        return self._active[-1]

    def undo(self, number: int) -> ActiveFault:
        self.time += 1
        if number in self._not_undoable:
            raise Unavailable(f"{number} cannot be undone")
        return self._active[number]

    def run(self, *steps: AnyFault) -> bool:
        runner = ScriptRunner(
            self,
            self,
            on_injected=lambda fault, _: self.log.append((self.time, node(fault))),
            on_undone=lambda active: self.log.append((self.time, f"undo {node(active.fault)}")),
            now=lambda: self.time,
        )
        return runner.run(steps)


def node(fault: AnyFault) -> str:
    return str(getattr(fault, "nodes", "?")[0])


def test_after_counts_from_the_previous_step_and_for_from_the_injection() -> None:
    fake = FakeInjector()
    assert fake.run(
        KillNode(nodes=("a",), for_="30s"),
        RebootNode(nodes=("b",), after="10s"),
        BreakFabric(nodes=("c",), after="2s", for_="5s"),
    )
    assert fake.log == [(1, "a"), (11, "b"), (13, "c"), (19, "undo c"), (32, "undo a")]


def test_a_fault_that_is_due_is_undone_before_the_next_step() -> None:
    fake = FakeInjector()
    assert fake.run(KillNode(nodes=("a",), for_="3s"), KillNode(nodes=("b",), after="60s", for_="3s"))
    assert fake.log == [(1, "a"), (5, "undo a"), (61, "b"), (65, "undo b")]


def test_a_fault_without_a_time_stays_active_at_the_end() -> None:
    fake = FakeInjector()
    assert fake.run(KillNode(nodes=("a",)))
    assert fake.log == [(1, "a")]


@pytest.mark.parametrize("moment", [2.0, 10.5, 20.0])
def test_a_stop_undoes_the_faults_with_a_time_and_injects_no_more(moment: float) -> None:
    fake = FakeInjector(stop_at=moment)
    steps: list[AnyFault] = [
        KillNode(nodes=("a",), for_="30s"),
        BreakFabric(nodes=("b",)),
        KillNode(nodes=("c",), after="60s", for_="1s"),
    ]
    assert not fake.run(*steps)
    assert [what for _, what in fake.log] == ["a", "b", "undo a"]


def test_a_fault_that_cannot_be_undone_does_not_prevent_the_others_from_being_undone() -> None:
    fake = FakeInjector(stop_at=4, not_undoable=(0,))
    with pytest.raises(ImexError, match="0 cannot be undone"):
        fake.run(KillNode(nodes=("a",), for_="30s"), KillNode(nodes=("b",), for_="40s", after="1s"))
    assert [what for _, what in fake.log] == ["a", "b", "undo b"]
