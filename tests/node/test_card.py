"""What a node says of itself, and that a pod which comes or goes is no reason to say it again."""

import pytest
from msgspec import structs

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, HeldChannel, ImexState, NVLinkNodeStatus
from imex_dra.imex.link import DaemonState
from imex_dra.node.card import card_status
from imex_dra.node.checkpoint import Checkpoint, PreparedClaim
from imex_dra.node.readiness import Knowledge
from tests.node.facts import BOOT, HEALTHY, PARTITION, READING, but, daemon, reading
from tests.node.prepared import prepared

EMPTY = Checkpoint()
UNWRITTEN = NVLinkNodeStatus()


def card(
    known: Knowledge = HEALTHY, checkpoint: Checkpoint = EMPTY, last: NVLinkNodeStatus = UNWRITTEN
) -> NVLinkNodeStatus:
    return card_status(known, "10.0.0.1", checkpoint, last)


def test_a_healthy_node_says_what_hardware_and_daemon_say_and_has_no_problem() -> None:
    assert card() == NVLinkNodeStatus(
        fabric=READING.fabric,
        partition=PARTITION,
        address="10.0.0.1",
        slot=0,
        imex_state=ImexState.READY,
        connected=(1,),
        driver_version="580.95.05",
        channel_count=2048,
        boot_id=BOOT,
        imex_partition=PARTITION,
        applied_generation=5,
    )


def test_its_problem_is_what_a_prepare_would_say() -> None:
    broken = but(reading=reading(FabricState.BROKEN, "a GPU is gone"))
    assert card(broken).problem.startswith("the NVLink fabric of node n1 is broken: a GPU is gone")
    assert card(but(daemon=daemon(ImexState.INIT_GPU))).problem.startswith(
        "the IMEX daemon of node n1 is INIT_GPU"
    )
    assert card(but(reading=reading(FabricState.NONE))).problem == ""


def test_a_daemon_that_serves_may_have_something_to_say_nevertheless() -> None:
    assert card(but(daemon=daemon(problem="it was restarted"))).problem == "it was restarted"
    assert card(but(reading=reading(FabricState.NONE), daemon=DaemonState(problem="no agent"))).problem == ""


def holding(*claims: PreparedClaim, answered: int = 0) -> Checkpoint:
    checkpoint = EMPTY.with_promise(PARTITION, answered) if answered else EMPTY
    for claim in claims:
        checkpoint = checkpoint.with_claim(claim)
    return checkpoint


def numbers(said: NVLinkNodeStatus) -> list[int]:
    return [held.channel for held in said.held_channels]


def test_a_pod_that_comes_or_goes_changes_nothing_until_the_next_recall() -> None:
    before = card()
    assert card(HEALTHY, holding(prepared("c1")), before) == before
    answer = card(HEALTHY, holding(prepared("c1"), prepared("c2", channel=3), answered=1), before)
    assert (numbers(answer), answer.answered_recall) == ([3, 7], 1)
    (first, _) = answer.held_channels
    assert first == HeldChannel(PARTITION, 3, "uid-job")
    more = holding(prepared("c1"), prepared("c2", channel=3), prepared("c3", channel=9), answered=1)
    assert card(HEALTHY, more, answer) == answer


def test_a_number_let_go_is_said_at_once_if_it_rests_and_not_if_it_is_still_assigned() -> None:
    answer = card(HEALTHY, holding(prepared("c1"), prepared("c2", channel=3), answered=1))
    let_go_of_what_rests = holding(prepared("c1"), answered=1)
    assert numbers(card(HEALTHY, let_go_of_what_rests, answer)) == [7]
    let_go_of_what_is_assigned = holding(prepared("c2", channel=3), answered=1)
    assert numbers(card(HEALTHY, let_go_of_what_is_assigned, answer)) == [3, 7]


def test_held_channels_are_told_each_once_and_with_the_partition_they_are_of() -> None:
    held = holding(prepared("c1"), prepared("c2"), prepared("c3", channel=9, partition="another"))
    held = held.with_claim(prepared("c4", channel=-1, partition="")).with_promise(PARTITION, 1)
    assert card(HEALTHY, held).held_channels == (
        HeldChannel(PARTITION, 7, "uid-job"),
        HeldChannel("another", 9, "uid-job"),
    )


def test_a_new_boot_lets_go_and_without_a_boot_id_nothing_is_said() -> None:
    answer = card(HEALTHY, holding(prepared("c1"), answered=1))
    rebooted = but(reading=structs.replace(READING, boot_id="boot-2"))
    assert numbers(card(rebooted, holding(prepared("c1"), answered=1), answer)) == []
    blind = but(reading=structs.replace(READING, boot_id=""))
    said = card(blind, holding(answered=1), answer)
    assert (numbers(said), said.boot_id) == ([7], BOOT)


@pytest.mark.parametrize("state", [FabricState.BROKEN, FabricState.PENDING])
def test_a_fabric_that_is_not_well_keeps_its_partition(state: FabricState) -> None:
    assert card(but(reading=reading(state))).partition == PARTITION
    assert card(but(reading=reading(FabricState.NONE))).partition == ""


def test_where_the_daemon_runs_is_said_and_silence_changes_nothing_about_it() -> None:
    other = but(daemon=daemon(partition=PartitionId("7b968a6d.2")))
    said = card(other)
    assert said.imex_partition == "7b968a6d.2"
    silent = but(daemon=DaemonState(problem="imex daemon does not answer on this node"))
    assert card(silent, last=said).imex_partition == "7b968a6d.2"
    assert card(but(daemon=DaemonState()), last=said).imex_partition == ""


def test_a_daemon_that_still_runs_in_the_partition_the_node_came_from_says_nothing_about_this_one() -> None:
    moved = but(daemon=daemon(partition=PartitionId("7b968a6d.2")))
    said = card(moved)
    assert (said.partition, said.imex_state) == (PARTITION, ImexState.READY)
    assert (said.slot, said.connected, said.applied_generation) == (-1, (), 0)
