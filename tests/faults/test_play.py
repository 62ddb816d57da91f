"""A script on the clock: what begins when, what is undone when, and what is left when somebody stops it."""

import pytest

from imex_dra.base.errors import ImexError, Unavailable
from imex_dra.sandbox.faults.kinds import AnyFault, BreakFabric, KillNode, RebootNode
from imex_dra.sandbox.faults.play import Player
from imex_dra.sandbox.faults.record import Standing


class Stage:
    """Injector, clock and stop in one; every action takes a second."""

    def __init__(self, *, stop_at: float = 1e9, broken: tuple[int, ...] = ()) -> None:
        self.time = 0.0
        self.log: list[tuple[float, str]] = []
        self._stop_at = stop_at
        self._broken = broken
        self._standing: list[Standing] = []

    def wait(self, timeout: float) -> bool:
        self.time = min(self.time + timeout, max(self.time, self._stop_at))
        return self.time >= self._stop_at

    def begin(self, fault: AnyFault) -> Standing | None:
        self.time += 1
        if not fault.lasts:
            return None
        self._standing.append(Standing(len(self._standing), fault, ""))
        return self._standing[-1]

    def undo(self, number: int) -> Standing:
        self.time += 1
        if number in self._broken:
            raise Unavailable(f"{number} can't be undone")
        return self._standing[number]

    def play(self, *steps: AnyFault) -> bool:
        player = Player(
            self,
            self,
            begun=lambda fault, _: self.log.append((self.time, name(fault))),
            undone=lambda standing: self.log.append((self.time, f"no {name(standing.fault)}")),
            now=lambda: self.time,
        )
        return player.play(steps)


def name(fault: AnyFault) -> str:
    return str(getattr(fault, "nodes", "?")[0])


def test_steps_begin_after_the_one_before_began_and_end_on_their_own_time() -> None:
    stage = Stage()
    assert stage.play(
        KillNode(nodes=("a",), for_="30s"),
        RebootNode(nodes=("b",), after="10s"),
        BreakFabric(nodes=("c",), after="2s", for_="5s"),
    )
    assert stage.log == [(1, "a"), (11, "b"), (13, "c"), (19, "no c"), (32, "no a")]


def test_what_is_due_is_undone_before_the_next_step_begins() -> None:
    stage = Stage()
    assert stage.play(KillNode(nodes=("a",), for_="3s"), KillNode(nodes=("b",), after="60s", for_="3s"))
    assert stage.log == [(1, "a"), (5, "no a"), (61, "b"), (65, "no b")]


def test_what_has_no_time_is_left_standing_at_the_end() -> None:
    stage = Stage()
    assert stage.play(KillNode(nodes=("a",)))
    assert stage.log == [(1, "a")]


@pytest.mark.parametrize("moment", [2.0, 10.5, 20.0])
def test_whoever_stops_it_has_everything_with_a_time_undone_and_nothing_more_begun(moment: float) -> None:
    stage = Stage(stop_at=moment)
    steps: list[AnyFault] = [
        KillNode(nodes=("a",), for_="30s"),
        BreakFabric(nodes=("b",)),
        KillNode(nodes=("c",), after="60s", for_="1s"),
    ]
    assert not stage.play(*steps)
    assert [what for _, what in stage.log] == ["a", "b", "no a"]


def test_one_that_cant_be_undone_keeps_no_other_from_it() -> None:
    stage = Stage(stop_at=4, broken=(0,))
    with pytest.raises(ImexError, match="0 can't be undone"):
        stage.play(KillNode(nodes=("a",), for_="30s"), KillNode(nodes=("b",), for_="40s", after="1s"))
    assert [what for _, what in stage.log] == ["a", "b", "no b"]
