"""How racks are drawn, character by character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imex_dra.picture.model import DomainClaims, Rack, RackNode
from imex_dra.picture.rackdrawing import LAYOUTS, Layout, draw_node, draw_rack, draw_racks, node_labels
from imex_dra.picture.text import plain, width

A, B = DomainClaims("A"), DomainClaims("B", claims=2)
SMALL = Rack(
    "r0",
    (
        RackNode("r0-n0", devices=16, domains=(A,)),
        RackNode("r0-n1", devices=16, domains=(B, A)),
        RackNode("r0-n2", devices=16, domains=(DomainClaims("A", prepared=False),)),
        RackNode("r0-n3", devices=16),
        RackNode("r0-n4", ready=False, imex="UNAVAILABLE"),
        RackNode("r0-n5", fabric="broken", imex="READY"),
    ),
    product="GB200",
    state="DEGRADED",
)


def drawn(rack: Rack, layout: Layout) -> str:
    return "\n" + plain(draw_rack(rack, layout))


def test_a_line_shows_the_node_its_imex_state_its_domains_and_its_devices() -> None:
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


def test_a_smaller_rack_has_its_nodes_in_columns_top_to_bottom() -> None:
    assert (
        drawn(SMALL, Layout(2, 5))
        == """
╭─ r0 GB200 ─ 5/6 Ready ─╮
│ 0 ●◆ ▇ A ▇  3 ●◆ ····· │
│ 1 ●◆ ▇B▇A▇  4 ○◇       │
│ 2 ●◆ ░ A ░  5 ●✕       │
╰─ IMEX DEGRADED 5/6 ────╯"""
    )


def test_a_plus_sign_stands_for_domains_that_do_not_fit() -> None:
    crowded = RackNode("n0", devices=16, domains=(A, B, DomainClaims("C"), DomainClaims("D")))
    assert plain([draw_node(crowded, "0", Layout(1, 3))]) == "0 ●◆ AB+"
    assert plain([draw_node(crowded, "0", Layout(1, 1))]) == "0 ●◆ +"


def test_a_rack_without_multi_node_nvlink_is_not_marked_as_broken() -> None:
    rack = Rack("h", (RackNode("h-n0", fabric="none", imex="UNAVAILABLE", devices=16),))
    assert (
        drawn(rack, Layout(1, 20))
        == """
╭─ h ─────────── 1/1 Ready ─╮
│ 0 ●- ···················· │
╞═ no NVLink between nodes ═╡
╰───────────────────────────╯"""
    )


def test_a_rack_of_18_nodes_has_ten_above_the_switches() -> None:
    rack = Rack("r0", tuple(RackNode(f"r0-n{number:02}") for number in range(18)))
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
def test_the_labels_of_nodes_are_unique(names: list[str], labels: list[str]) -> None:
    assert node_labels(names) == labels


domain_claims = st.builds(DomainClaims, st.sampled_from("ABCDEFG"), st.integers(1, 16), st.booleans())
nodes = st.builds(
    RackNode,
    st.from_regex(r"[a-z]{1,8}[0-9]{0,3}", fullmatch=True),
    st.booleans(),
    st.sampled_from(["READY", "UNAVAILABLE", ""]),
    st.sampled_from(["ok", "none", "pending", "broken"]),
    st.integers(0, 128),
    st.lists(domain_claims, max_size=20).map(tuple),
)
racks = st.builds(
    Rack,
    st.from_regex(r"[a-z0-9.]{1,40}", fullmatch=True),
    st.lists(nodes, max_size=20).map(tuple),
    st.sampled_from(["", "GB200", "GH200 144G HBM3e"]),
    st.sampled_from(["", "UP", "DEGRADED", "DOWN"]),
)


@settings(max_examples=40)
@given(racks, st.sampled_from(LAYOUTS))
def test_all_lines_of_a_rack_are_equally_wide(rack: Rack, layout: Layout) -> None:
    assert len({width(line) for line in draw_rack(rack, layout)}) == 1


@settings(max_examples=40)
@given(st.lists(racks, max_size=3), st.integers(0, 200), st.integers(0, 60))
def test_racks_are_never_larger_than_the_given_size(some: list[Rack], columns: int, height: int) -> None:
    lines = draw_racks(some, columns, height)
    assert len(lines) <= height
    assert all(width(line) <= columns for line in lines)
