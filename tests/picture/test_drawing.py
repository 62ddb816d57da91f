"""The whole picture: where its parts are, and what is left out in a smaller terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imex_dra.picture.drawing import draw
from imex_dra.picture.model import (
    EMPTY,
    ClusterModel,
    Counts,
    Domain,
    DomainClaims,
    Rack,
    RackChannel,
    RackNode,
    RunProgress,
    Step,
    StepState,
)
from imex_dra.picture.text import plain, width
from tests.picture.test_rackdrawing import racks

RACK = Rack(
    "r0",
    tuple(RackNode(f"r0-n{n}", devices=16, domains=(DomainClaims("A"),) * (n < 2)) for n in range(4)),
    "GB200",
    "UP",
)
MODEL = ClusterModel(
    (RACK,),
    (Domain("A", "demo", "train", "Ready", (RackChannel("r0", 1),)), Domain("B", "demo", "other", "NotReady")),
    Counts((("reserved", 2),), (("Running", 2), ("Pending", 1))),
)
PROGRESS = RunProgress(
    "imex-dra",
    (
        Step("racks", StepState.DONE, 12.34),
        Step("MPIJob", StepState.RUNNING, 3.1, "2 of 18 workers run"),
        Step("clean-up"),
    ),
    75.9,
)


def drawn(model: ClusterModel, progress: RunProgress, size: tuple[int, int], tick: int = 0) -> str:
    return "\n" + plain(draw(model, progress, width=size[0], height=size[1], tick=tick)) + "\n"


def test_in_a_large_terminal_steps_and_legend_are_beside_the_racks() -> None:
    assert (
        drawn(MODEL, PROGRESS, (66, 30))
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
                                 ░ claim allocated, not prepared
"""
    )


def test_in_a_narrow_terminal_the_current_step_is_above_the_racks_and_the_rest_below() -> None:
    assert (
        drawn(MODEL, PROGRESS, (58, 13))
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
▇ channel in a container   ░ claim allocated, not prepared
"""
    )


def test_in_a_tiny_terminal_a_rack_is_one_line() -> None:
    assert (
        drawn(MODEL, PROGRESS, (44, 6))
        == """
imex-dra                                1:15
⠋ MPIJob          2 of 18 workers run, 3.1 s
 r0 GB200  4/4 Ready  IMEX UP 4/4 · 2 claims
 A  demo/train  channel 1 in r0  Ready
 B  demo/other  no channel yet  NotReady
claims 2 reserved · pods 2 Running, 1 Pendi…
"""
    )


def test_before_the_cluster_exists_only_the_steps_are_shown() -> None:
    assert (
        drawn(EMPTY, PROGRESS, (60, 24), tick=2)
        == """
imex-dra                                                1:15

✓ racks                                   12.3 s
⠹ MPIJob                                   3.1 s
  2 of 18 workers run
· clean-up
"""
    )


def test_a_failed_step_is_marked() -> None:
    progress = RunProgress("imex-dra", (Step("racks", StepState.FAILED, 1),))
    assert "✗ racks" in drawn(EMPTY, progress, (60, 24))
    assert "✗ racks" in drawn(MODEL, progress, (40, 24))


@pytest.mark.parametrize(("size", "first"), [((160, 40), "▇" * 14), ((120, 40), "▇" * 10), ((100, 30), "▇" * 6)])
def test_two_racks_of_18_nodes_are_side_by_side_and_as_large_as_possible(
    size: tuple[int, int], first: str
) -> None:
    nodes = tuple(RackNode(f"n{number:02}", devices=16, domains=(DomainClaims("A"),)) for number in range(18))
    text = drawn(ClusterModel((Rack("r0", nodes), Rack("r1", nodes))), PROGRESS, size)
    assert text.count(f"│ 00 ●◆ {first} A {first}  1/16 │") == 2
    assert "✓ racks" in text


def test_racks_are_side_by_side_even_if_they_could_be_larger_one_above_the_other() -> None:
    nodes = tuple(RackNode(f"n{number:02}", devices=16, domains=(DomainClaims("A"),)) for number in range(18))
    text = drawn(ClusterModel((Rack("r0", nodes), Rack("r1", nodes))), PROGRESS, (100, 60))
    assert text.count("│ 00 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │  │ 00 ●◆") == 1


def test_two_racks_of_18_nodes_fit_into_80_by_24_with_every_node() -> None:
    nodes = tuple(RackNode(f"n{number:02}", devices=16, domains=(DomainClaims("A"),)) for number in range(18))
    text = drawn(
        ClusterModel((Rack("r0", nodes), Rack("r1", nodes)), MODEL.domains, MODEL.counts), PROGRESS, (80, 24)
    )
    assert text.count("▇▇▇ A ▇▇▇▇") == 36
    assert "demo/other" in text


@settings(max_examples=40)
@given(st.lists(racks, max_size=3).map(tuple), st.integers(0, 200), st.integers(0, 60))
def test_a_picture_is_never_larger_than_the_terminal(some: tuple[Rack, ...], columns: int, height: int) -> None:
    lines = draw(ClusterModel(some, MODEL.domains, MODEL.counts), PROGRESS, width=columns, height=height)
    assert len(lines) <= height
    assert all(width(line) <= columns for line in lines)
