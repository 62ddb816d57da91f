"""The pictures of the benchmarks, and the cluster in memory that one of them reconciles."""

import re
from xml.etree import ElementTree

import pytest

from bench.curves import CURVES, MEMORY, START, Curve, Point, curve, pictures, svg
from bench.fleet import PODS, RACK, fleet
from bench.line import Line, line
from bench.statuspass import StatusPass
from imex_dra.api.computedomain import Readiness

SVG = "{http://www.w3.org/2000/svg}"


def figure(nodes: str, what: str, value: float) -> Line:
    return line(f"{nodes} nodes: {what}", value, "s", yardstick=value / 2, yardstick_is="something simple")


LINES = [
    figure("10,000", START, 90),
    figure("18", START, 2),
    figure("1,000", START, 12),
    figure("18", MEMORY, 50),
    figure("18", "something else", 7),
]


def test_a_curve_has_the_figures_of_its_name_in_the_order_of_the_nodes() -> None:
    found = curve("Start", START, LINES)
    assert found is not None
    assert found.points == [Point(18, 2, 1), Point(1000, 12, 6), Point(10000, 90, 45)]
    assert (found.unit, found.yardstick_is) == ("s", "something simple")


def test_there_is_no_picture_of_a_single_figure() -> None:
    assert curve("Memory", MEMORY, LINES) is None
    assert pictures(LINES).keys() == {"start"}
    assert pictures(LINES).keys() < CURVES.keys()


def test_a_picture_shows_every_value_where_it_belongs() -> None:
    picture = ElementTree.fromstring(svg(Curve("Start", "s", "a < b", [Point(18, 2, 1), Point(1000, 12, 6)])))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    for expected in ("Start (s)", "dashed: a < b", "18", "1,000", "2", "12", "nodes", "0", "9"):
        assert expected in texts
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in picture.iter(f"{SVG}circle")]
    (left, low), (right, high) = dots
    assert left < right
    assert low > high
    lines = [polyline.attrib["points"] for polyline in picture.iter(f"{SVG}polyline")]
    assert [len(re.findall(",", points)) for points in lines] == [2, 2]


@pytest.mark.parametrize("released", [0, 40])
async def test_the_cluster_in_memory_is_at_rest_after_one_pass(released: int) -> None:
    objects = fleet(2, 12, released=released)
    assert (len(objects.nodes), len(objects.claims)) == (2 * RACK, 12 * PODS)
    cluster = StatusPass(objects)
    await cluster.run()
    assert [domain.status.status for domain in cluster.domains()] == [Readiness.READY] * 12
    assert [domain.status.summary.nodes for domain in cluster.domains()] == ["4/4"] * 12
    written = cluster.client.writes
    await cluster.run()
    assert cluster.client.writes == written
