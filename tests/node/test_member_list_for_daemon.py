"""With which member list a node runs nvidia-imex. See test_lasting for the order to stop."""

from msgspec import structs

from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.imex.memberlist import Leave, MemberList
from imex_dra.node.state import member_list_for_daemon
from tests.node.snapshots import PARTITION, daemon, healthy_except, member, partition, reading


def at(generation: int, found: NVLinkPartition, **status: object) -> NVLinkPartition:
    return structs.replace(found, status=structs.replace(found.status, generation=generation, **status))


RUNNING = structs.replace(daemon(), generation=5)


def test_a_member_gets_the_list() -> None:
    found = healthy_except(watched_partition=at(6, partition(member())), daemon=RUNNING)
    sent = member_list_for_daemon(found)
    assert isinstance(sent, MemberList)
    assert (sent.partition, sent.generation, sent.own_index) == (PARTITION, 6, 0)


def test_a_member_of_a_recovering_partition_gets_no_list_because_it_may_be_incomplete() -> None:
    recovering = at(6, partition(member()), pending_reports=("n2",))
    found = healthy_except(watched_partition=recovering, daemon=RUNNING)
    assert member_list_for_daemon(found) is None


def test_a_node_that_is_proven_to_have_no_fabric_leaves_the_partition_of_its_daemon() -> None:
    no_fabric = healthy_except(reading=reading(FabricState.NONE), daemon=RUNNING)
    assert member_list_for_daemon(no_fabric) == Leave("")
    not_up_yet = structs.replace(no_fabric, reading=reading(FabricState.PENDING))
    assert member_list_for_daemon(not_up_yet) is None
