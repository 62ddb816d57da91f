"""The whole picture: what stands where, and how it degrades when there is less room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imex_dra.picture.ink import plain, width
from imex_dra.picture.picture import picture
from imex_dra.picture.scene import EMPTY, Domain, Holding, Place, Progress, Rack, Scene, Step, Story, Tally, Tray
from tests.picture.test_trays import some_racks

RACK = Rack(
    "r0", tuple(Tray(f"r0-n{n}", seats=16, holdings=(Holding("A"),) * (n < 2)) for n in range(4)), "GB200", "UP"
)
SCENE = Scene(
    (RACK,),
    (Domain("A", "demo", "train", "Ready", (Place("r0", 1),)), Domain("B", "demo", "other", "NotReady")),
    Tally((("reserved", 2),), (("Running", 2), ("Pending", 1))),
)
STORY = Story(
    "imex-dra",
    (
        Step("racks", Progress.DONE, 12.34),
        Step("MPIJob", Progress.RUNNING, 3.1, "2 of 18 workers run"),
        Step("clean-up"),
    ),
    75.9,
)


def shown(scene: Scene, story: Story, size: tuple[int, int], tick: int = 0) -> str:
    return "\n" + plain(picture(scene, story, width=size[0], height=size[1], tick=tick)) + "\n"


def test_with_room_the_story_and_the_legend_stand_beside_the_racks() -> None:
    assert (
        shown(SCENE, STORY, (66, 30))
        == """
imex-dra                                                      1:15

╭─ r0 GB200 ───── 4/4 Ready ─╮   ✓ racks                    12.3 s
│ 0 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │   ⠋ MPIJob                    3.1 s
│ 1 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │     2 of 18 workers run
│ 2 ●◆ ···············  0/16 │   · clean-up
╞═══════ IMEX UP 4/4 ════════╡
│ 3 ●◆ ···············  0/16 │    A  demo/train              Ready
╰────────────────────────────╯       channel 1 in r0
                                  B  demo/other           NotReady
                                     no channel yet

                                 claims  2 reserved
                                 pods    2 Running, 1 Pending

                                 ●○ node Ready, or not
                                 ◆◇ IMEX READY, or not
                                 ✕ fabric broken
                                 ▇ channel in a container
                                 ░ seat allocated, no channel yet
"""
    )


def test_without_room_beside_them_the_story_stands_above_and_the_legend_below() -> None:
    assert (
        shown(SCENE, STORY, (58, 13))
        == """
imex-dra                                              1:15
⠋ MPIJob                        2 of 18 workers run, 3.1 s
╭─ r0 GB200 ───────────────────── 4/4 Ready ─╮
│ 0 ●◆ ▇▇▇▇▇▇▇▇▇▇▇▇▇▇ A ▇▇▇▇▇▇▇▇▇▇▇▇▇▇  1/16 │
│ 1 ●◆ ▇▇▇▇▇▇▇▇▇▇▇▇▇▇ A ▇▇▇▇▇▇▇▇▇▇▇▇▇▇  1/16 │
│ 2 ●◆ ·······························  0/16 │
╞═══════════════ IMEX UP 4/4 ════════════════╡
│ 3 ●◆ ·······························  0/16 │
╰────────────────────────────────────────────╯
 A  demo/train  channel 1 in r0  Ready
 B  demo/other  no channel yet  NotReady
claims 2 reserved · pods 2 Running, 1 Pending
"""
    )


def test_in_a_tiny_window_a_rack_is_a_line() -> None:
    assert (
        shown(SCENE, STORY, (44, 6))
        == """
imex-dra                                1:15
⠋ MPIJob          2 of 18 workers run, 3.1 s
 r0 GB200  4/4 Ready  IMEX UP 4/4 · 2 claims
 A  demo/train  channel 1 in r0  Ready
 B  demo/other  no channel yet  NotReady
claims 2 reserved · pods 2 Running, 1 Pendi…
"""
    )


def test_before_there_is_a_cluster_there_is_the_story() -> None:
    assert (
        shown(EMPTY, STORY, (60, 24), tick=2)
        == """
imex-dra                                                1:15

✓ racks                                   12.3 s
⠹ MPIJob                                   3.1 s
  2 of 18 workers run
· clean-up
"""
    )


def test_a_step_that_failed_is_marked() -> None:
    story = Story("imex-dra", (Step("racks", Progress.FAILED, 1),))
    assert "✗ racks" in shown(EMPTY, story, (60, 24))
    assert "✗ racks" in shown(SCENE, story, (40, 24))


@pytest.mark.parametrize(("size", "first"), [((160, 40), "▇" * 14), ((120, 40), "▇" * 10), ((100, 30), "▇" * 6)])
def test_two_racks_of_eighteen_stand_side_by_side_as_large_as_they_fit(size: tuple[int, int], first: str) -> None:
    lit = tuple(Tray(f"n{number:02}", seats=16, holdings=(Holding("A"),)) for number in range(18))
    text = shown(Scene((Rack("r0", lit), Rack("r1", lit))), STORY, size)
    assert text.count(f"│ 00 ●◆ {first} A {first}  1/16 │") == 2
    assert "✓ racks" in text


def test_racks_rather_stand_side_by_side_than_larger_above_each_other() -> None:
    lit = tuple(Tray(f"n{number:02}", seats=16, holdings=(Holding("A"),)) for number in range(18))
    text = shown(Scene((Rack("r0", lit), Rack("r1", lit))), STORY, (100, 60))
    assert text.count("│ 00 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │  │ 00 ●◆") == 1


def test_two_racks_of_eighteen_fit_into_the_smallest_usual_terminal_with_every_tray() -> None:
    lit = tuple(Tray(f"n{number:02}", seats=16, holdings=(Holding("A"),)) for number in range(18))
    text = shown(Scene((Rack("r0", lit), Rack("r1", lit)), SCENE.domains, SCENE.tally), STORY, (80, 24))
    assert text.count("▇▇▇ A ▇▇▇▇") == 36
    assert "demo/other" in text


@settings(max_examples=40)
@given(st.lists(some_racks, max_size=3).map(tuple), st.integers(0, 200), st.integers(0, 60))
def test_a_picture_is_never_larger_than_its_room(racks: tuple[Rack, ...], room: int, height: int) -> None:
    lines = picture(Scene(racks, SCENE.domains, SCENE.tally), STORY, width=room, height=height)
    assert len(lines) <= height
    assert all(width(line) <= room for line in lines)
