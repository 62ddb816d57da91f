from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.mpi.arguments import Arguments
from imex_dra.sandbox.mpi.layout import Host, choose, place, read_hostfile

RACK = [Host(f"job-worker-{n}.job.default.svc", 4) for n in range(18)]
TWO = [Host("a", 2), Host("b", 2)]

HOSTS = st.lists(st.integers(1, 6), min_size=1, max_size=8).map(
    lambda slots: [Host(f"h{number}", count) for number, count in enumerate(slots)]
)


def names(hosts: list[Host], arguments: Arguments) -> str:
    return "".join(placement.host.name for placement in place(hosts, arguments))


def test_a_hostfile_of_the_mpi_operator_is_read() -> None:
    text = "".join(f"{host.name} slots=4\n" for host in RACK)
    assert read_hostfile(text) == RACK


def test_other_peoples_hostfiles_are_read_too() -> None:
    text = "# my hosts\n\na slots=2 max_slots=8 # first\nb\na slots = 1\n"
    assert read_hostfile(text) == [Host("a", 3), Host("b", 1)]


def test_every_slot_of_a_rack_is_filled_if_no_number_is_asked_for() -> None:
    placements = place(RACK, Arguments())
    assert [placement.rank for placement in placements] == list(range(72))
    assert [placement.host for placement in placements[:5]] == [*[RACK[0]] * 4, RACK[1]]
    assert [placement.local_rank for placement in placements[:5]] == [0, 1, 2, 3, 0]
    assert {placement.local_size for placement in placements} == {4}


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (Arguments(), "aabb"),
        (Arguments(processes=3), "aab"),
        (Arguments(by_node=True), "abab"),
        (Arguments(per_node=1), "ab"),
        (Arguments(per_node=2, processes=3), "aab"),
        (Arguments(processes=7, oversubscribe=True), "aabbaba"),
        (Arguments(per_node=3, oversubscribe=True), "aaabbb"),
    ],
)
def test_ranks_fill_slots_host_by_host_unless_told_otherwise(arguments: Arguments, where: str) -> None:
    assert names(TWO, arguments) == where


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (Arguments(processes=5), "5 ranks were asked for, and there is room for 4"),
        (Arguments(per_node=3), "3 ranks per node, but a has 2 slots: raise slotsPerWorker"),
        (Arguments(per_node=1, processes=3), "3 ranks were asked for, and there is room for 2"),
    ],
)
def test_more_ranks_than_slots_are_refused(arguments: Arguments, complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint):
        place(TWO, arguments)


def test_hosts_can_be_chosen_by_the_pods_name() -> None:
    assert choose(RACK, ["job-worker-3:2", "job-worker-0"]) == [Host(RACK[3].name, 2), RACK[0]]
    assert choose(RACK, []) == RACK
    with pytest.raises(
        Misconfigured, match=r"--host other: the hostfile does not list it\. It has job-worker-0, job"
    ):
        choose(RACK, ["other"])


@given(HOSTS, st.booleans(), st.data())
def test_whatever_is_asked_for_every_rank_has_one_place_of_its_own(
    hosts: list[Host], by_node: bool, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    placements = place(hosts, Arguments(processes=count, by_node=by_node))
    assert [placement.rank for placement in placements] == list(range(count))
    assert len({(placement.host, placement.local_rank) for placement in placements}) == count
    for host, ranks in Counter(placement.host for placement in placements).items():
        assert ranks <= host.slots
        mine = [placement for placement in placements if placement.host == host]
        assert [placement.local_rank for placement in mine] == list(range(ranks))
        assert {placement.local_size for placement in mine} == {ranks}
