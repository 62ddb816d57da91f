"""How racks are drawn, to the character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imex_dra.picture import trays
from imex_dra.picture.ink import plain, width
from imex_dra.picture.scene import Holding, Rack, Tray
from imex_dra.picture.trays import LAYOUTS, Layout, labels_of

A, B = Holding("A"), Holding("B", claims=2)
SMALL = Rack(
    "r0",
    (
        Tray("r0-n0", seats=16, holdings=(A,)),
        Tray("r0-n1", seats=16, holdings=(B, A)),
        Tray("r0-n2", seats=16, holdings=(Holding("A", prepared=False),)),
        Tray("r0-n3", seats=16),
        Tray("r0-n4", ready=False, imex="UNAVAILABLE"),
        Tray("r0-n5", fabric="broken", imex="READY"),
    ),
    product="GB200",
    state="DEGRADED",
)


def drawn(rack: Rack, layout: Layout) -> str:
    return "\n" + plain(trays.rack(rack, layout))


def test_a_tray_shows_its_node_its_imex_its_seats_and_who_holds_a_channel_there() -> None:
    assert (
        drawn(SMALL, Layout(1, 15, counts=True))
        == """
╭─ r0 GB200 ───── 5/6 Ready ─╮
│ 0 ●◆ ▇▇▇▇▇▇ A ▇▇▇▇▇▇  1/16 │
│ 1 ●◆ ▇ B×2 ▇▇▇▇ A ▇▇  3/16 │
│ 2 ●◆ ░░░░░░ A ░░░░░░  1/16 │
│ 3 ●◆ ···············  0/16 │
╞════ IMEX DEGRADED 5/6 ═════╡
│ 4 ○◇                       │
│ 5 ●✕                       │
╰────────────────────────────╯"""  # noqa: RUF001
    )


def test_a_smaller_rack_has_its_trays_in_columns_downwards() -> None:
    assert (
        drawn(SMALL, Layout(2, 5))
        == """
╭─ r0 GB200 ─ 5/6 Ready ─╮
│ 0 ●◆ ▇ A ▇  3 ●◆ ····· │
│ 1 ●◆ ▇B▇A▇  4 ○◇       │
│ 2 ●◆ ░ A ░  5 ●✕       │
╰─ IMEX DEGRADED 5/6 ────╯"""
    )


def test_the_smallest_tray_says_that_there_are_more_holders_than_cells() -> None:
    crowded = Tray("n0", seats=16, holdings=(A, B, Holding("C"), Holding("D")))
    assert plain([trays.tray(crowded, "0", Layout(1, 3))]) == "0 ●◆ AB+"
    assert plain([trays.tray(crowded, "0", Layout(1, 1))]) == "0 ●◆ +"


def test_a_node_without_nvlink_to_others_is_no_defect() -> None:
    rack = Rack("h", (Tray("h-n0", fabric="none", imex="UNAVAILABLE", seats=16),))
    assert (
        drawn(rack, Layout(1, 20))
        == """
╭─ h ─────────── 1/1 Ready ─╮
│ 0 ●- ···················· │
╞═ no NVLink between nodes ═╡
╰───────────────────────────╯"""
    )


def test_a_rack_of_eighteen_has_ten_trays_above_the_switches() -> None:
    rack = Rack("r0", tuple(Tray(f"r0-n{number:02}") for number in range(18)))
    lines = drawn(rack, LAYOUTS[2]).splitlines()
    spine = next(number for number, line in enumerate(lines) if line.startswith("╞"))
    assert lines[spine - 1].startswith("│ 09 ")
    assert lines[spine + 1].startswith("│ 10 ")


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["r0-n00", "r0-n01"], ["00", "01"]),
        (["n8", "n9", "n10"], [" 8", " 9", "10"]),
        (["rack-a1", "rack-b1"], ["ack-a1", "ack-b1"]),
        (["alpha", "beta"], ["alpha", " beta"]),
        ([], []),
    ],
)
def test_labels_tell_nodes_apart(names: list[str], labels: list[str]) -> None:
    assert labels_of(names) == labels


holdings = st.builds(Holding, st.sampled_from("ABCDEFG"), st.integers(1, 16), st.booleans())
some_trays = st.builds(
    Tray,
    st.from_regex(r"[a-z]{1,8}[0-9]{0,3}", fullmatch=True),
    st.booleans(),
    st.sampled_from(["READY", "UNAVAILABLE", ""]),
    st.sampled_from(["ok", "none", "pending", "broken"]),
    st.integers(0, 128),
    st.lists(holdings, max_size=20).map(tuple),
)
some_racks = st.builds(
    Rack,
    st.from_regex(r"[a-z0-9.]{1,40}", fullmatch=True),
    st.lists(some_trays, max_size=20).map(tuple),
    st.sampled_from(["", "GB200", "GH200 144G HBM3e"]),
    st.sampled_from(["", "UP", "DEGRADED", "DOWN"]),
)


@settings(max_examples=40)
@given(some_racks, st.sampled_from(LAYOUTS))
def test_all_lines_of_a_rack_are_equally_wide(rack: Rack, layout: Layout) -> None:
    assert len({width(line) for line in trays.rack(rack, layout)}) == 1


@settings(max_examples=40)
@given(st.lists(some_racks, max_size=3), st.integers(0, 200), st.integers(0, 60))
def test_racks_take_no_more_room_than_there_is(racks: list[Rack], room: int, height: int) -> None:
    lines = trays.racks(racks, room, height)
    assert len(lines) <= height
    assert all(width(line) <= room for line in lines)
