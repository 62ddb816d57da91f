from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.base.errors import Misconfigured
from imex_sandbox.mpi.arguments import Arguments
from imex_sandbox.mpi.mapping import Host, map_ranks, read_hostfile, select_hosts

RACK = [Host(f"job-worker-{n}.job.default.svc", 4) for n in range(18)]
TWO = [Host("a", 2), Host("b", 2)]

HOSTS = st.lists(st.integers(1, 6), min_size=1, max_size=8).map(
    lambda slots: [Host(f"h{number}", count) for number, count in enumerate(slots)]
)


def host_names(hosts: list[Host], arguments: Arguments) -> str:
    return "".join(placement.host.name for placement in map_ranks(hosts, arguments))


def test_a_hostfile_of_the_mpi_operator() -> None:
    text = "".join(f"{host.name} slots=4\n" for host in RACK)
    assert read_hostfile(text) == RACK


def test_a_hostfile_with_comments_spaces_and_repeated_hosts() -> None:
    text = "# my hosts\n\na slots=2 max_slots=8 # first\nb\na slots = 1\n"
    assert read_hostfile(text) == [Host("a", 3), Host("b", 1)]


def test_without_a_number_of_ranks_every_slot_is_used() -> None:
    placements = map_ranks(RACK, Arguments())
    assert [placement.rank for placement in placements] == list(range(72))
    assert [placement.host for placement in placements[:5]] == [*[RACK[0]] * 4, RACK[1]]
    assert [placement.local_rank for placement in placements[:5]] == [0, 1, 2, 3, 0]
    assert {placement.local_size for placement in placements} == {4}


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
def test_ranks_are_mapped_by_slot_by_node_or_per_node(arguments: Arguments, expected: str) -> None:
    assert host_names(TWO, arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (Arguments(processes=5), "5 ranks were requested, but 2 hosts have 4 slots"),
        (Arguments(per_node=3), "3 ranks per node were requested, but a has 2 slots: increase slotsPerWorker"),
        (Arguments(per_node=1, processes=3), "3 ranks were requested, but 2 hosts have 2 slots"),
    ],
)
def test_more_ranks_than_slots_are_rejected(arguments: Arguments, error: str) -> None:
    with pytest.raises(Misconfigured, match=error):
        map_ranks(TWO, arguments)


def test_hosts_can_be_selected_by_the_name_of_the_pod() -> None:
    assert select_hosts(RACK, ["job-worker-3:2", "job-worker-0"]) == [Host(RACK[3].name, 2), RACK[0]]
    assert select_hosts(RACK, []) == RACK
    with pytest.raises(
        Misconfigured, match="--host other is not in the hostfile, which contains job-worker-0, job"
    ):
        select_hosts(RACK, ["other"])


@given(HOSTS, st.booleans(), st.data())
def test_every_rank_has_a_slot_of_its_own(hosts: list[Host], by_node: bool, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    placements = map_ranks(hosts, Arguments(processes=count, by_node=by_node))
    assert [placement.rank for placement in placements] == list(range(count))
    assert len({(placement.host, placement.local_rank) for placement in placements}) == count
    for host, ranks in Counter(placement.host for placement in placements).items():
        assert ranks <= host.slots
        local = [placement for placement in placements if placement.host == host]
        assert [placement.local_rank for placement in local] == list(range(ranks))
        assert {placement.local_size for placement in local} == {ranks}
