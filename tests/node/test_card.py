"""What a node says of itself, and that a pod which comes or goes is no reason to say it again."""

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNodeStatus
from imex_dra.imex.link import DaemonState
from imex_dra.node.card import card_status
from imex_dra.node.checkpoint import Checkpoint
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


def test_a_pod_that_comes_or_goes_changes_nothing_until_the_next_generation() -> None:
    before = card()
    held = EMPTY.with_claim(prepared("c1", channel=7)).with_claim(prepared("c2", channel=3))
    assert card(HEALTHY, held, before) == before
    renewed = card(but(daemon=daemon(generation=6)), held, before)
    assert renewed.held_channels == (3, 7)
    assert card(but(daemon=daemon(generation=6)), EMPTY, renewed) == renewed
    assert card(but(daemon=daemon(generation=7)), EMPTY, renewed).held_channels == ()


def test_held_channels_are_those_of_this_partition_each_once() -> None:
    held = EMPTY.with_claim(prepared("c1", channel=7)).with_claim(prepared("c2", channel=7))
    held = held.with_claim(prepared("c3", channel=9, partition="another"))
    held = held.with_claim(prepared("c4", channel=-1, partition=""))
    assert card(HEALTHY, held).held_channels == (7,)
    assert card(but(reading=reading(FabricState.NONE)), held, card()).held_channels == ()


def test_a_daemon_that_still_runs_in_the_partition_the_node_came_from_says_nothing_about_this_one() -> None:
    moved = but(daemon=daemon(partition=PartitionId("7b968a6d.2")))
    said = card(moved)
    assert (said.partition, said.imex_state) == (PARTITION, ImexState.READY)
    assert (said.slot, said.connected, said.applied_generation) == (-1, (), 0)
