"""What the NVLinkNode reports, and when a report may wait."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import CONNECTED, READY, FabricState, HeldChannel, ImexState, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState
from imex_dra.daemon.state import UNKNOWN_DAEMON, DaemonState
from imex_dra.kube.conditions import find_condition
from imex_dra.node.checkpoint import Checkpoint, PreparedClaim
from imex_dra.node.grant import Snapshot
from imex_dra.node.nodestatus import node_status
from imex_dra.node.prepared import DiskError
from imex_dra.node.report import foreign_claims, report_delay
from tests.node.disk import prepared_claim
from tests.node.snapshots import (
    BOOT_ID,
    HEALTHY,
    OTHER_PARTITION,
    PARTITION,
    READING,
    assignment,
    daemon,
    healthy_except,
    member,
    partition,
    reading,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
EMPTY = Checkpoint()
NEVER_WRITTEN = NVLinkNodeStatus()


def status_of(
    snapshot: Snapshot = HEALTHY, checkpoint: Checkpoint = EMPTY, last: NVLinkNodeStatus = NEVER_WRITTEN
) -> NVLinkNodeStatus:
    return node_status(snapshot, checkpoint, last, NOW)


def condition(status: NVLinkNodeStatus, type_: str = READY) -> tuple[str, str, str]:
    found = find_condition(status.conditions, type_)
    assert found is not None
    return found.status, found.reason, found.message


def test_a_healthy_node_reports_its_hardware_and_its_daemon() -> None:
    ready = Condition(READY, "True", "ClaimsServed", "2026-01-01T00:00:00Z", "node n1 can serve claims")
    reached = "the IMEX daemon of node n1 can reach every other member of NVLink partition 7b968a6d.1"
    assert status_of() == NVLinkNodeStatus(
        fabric=READING.fabric,
        partition=PARTITION,
        address="10.0.0.1",
        index=0,
        imex_state=ImexState.READY,
        driver_version="580.95.05",
        channel_count=2048,
        max_claims=16,
        boot_id=BOOT_ID,
        imex_partition=PARTITION,
        applied_generation=5,
        conditions=(ready, Condition(CONNECTED, "True", "MembersReachable", "2026-01-01T00:00:00Z", reached)),
    )


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (
            healthy_except(reading=reading(FabricState.BROKEN, "a GPU is gone")),
            (
                "False",
                "FabricBroken",
                "n1: the NVLink fabric is broken (a GPU is gone); repair the node: its devices are"
                " withdrawn, and no new pod is scheduled here",
            ),
        ),
        (
            healthy_except(reading=reading(FabricState.PENDING, "no driver yet")),
            (
                "False",
                "FabricPending",
                "n1: the NVLink fabric is not up: no driver yet; check the GPU driver and the fabric"
                " manager if this lasts",
            ),
        ),
        (
            healthy_except(daemon=daemon(ImexState.UNAVAILABLE, problem="nvidia-imex ended with SIGSEGV")),
            (
                "False",
                "DaemonNotReady",
                "the IMEX daemon of node n1 is UNAVAILABLE, not READY: nvidia-imex ended with SIGSEGV; check the"
                " log of nvidia-imex on the node if it does not recover",
            ),
        ),
        (
            healthy_except(watched_partition=None),
            (
                "False",
                "PartitionNotReceived",
                "node n1 has not received NVLinkPartition 7b968a6d.1 from the API server yet; check that imex"
                " controller runs: kubectl -n imex-dra get lease imex-controller",
            ),
        ),
        (
            healthy_except(reading=reading(FabricState.NONE), daemon=DaemonState(problem="no agent")),
            ("True", "NoFabric", "n1 has no NVLink fabric: its pods get no channel"),
        ),
        (
            healthy_except(daemon=daemon(problem="nvidia-imex was restarted without recovery")),
            (
                "True",
                "ClaimsServed",
                "node n1 can serve claims, but nvidia-imex was restarted without recovery",
            ),
        ),
        (
            healthy_except(daemon=daemon(version="570.172")),
            (
                "True",
                "ClaimsServed",
                "node n1 can serve claims, but nvidia-imex is of version 570.172, and the GPU driver of version"
                " 580.95.05: install both in the same version, and delete the pod of the IMEX daemon there",
            ),
        ),
    ],
    ids=[
        "fabric broken",
        "fabric pending",
        "daemon not ready",
        "not a member",
        "no fabric",
        "a remark",
        "nvidia-imex of another version",
    ],
)
def test_the_ready_condition_is_about_the_node_and_never_about_a_pod(
    snapshot: Snapshot, expected: tuple[str, str, str]
) -> None:
    assert condition(status_of(snapshot)) == expected


def test_a_node_whose_disk_fails_is_not_ready_and_reports_the_last_known_claims() -> None:
    before = status_of(checkpoint=holding(prepared_claim("c1"), fence=3))
    error = DiskError("n1", OSError(5, "Input/output error", "/var/lib/imex-dra.json"))
    not_ready = healthy_except(daemon=daemon(ImexState.UNAVAILABLE))
    failing = node_status(not_ready, error, before, NOW)
    assert condition(failing)[:2] == ("False", "DiskError")
    assert "/var/lib/imex-dra.json: Input/output error" in condition(failing)[2]
    assert failing.imex_state is ImexState.UNAVAILABLE
    assert node_status(not_ready, error, failing, LATER) == failing, "it is not written again"
    unchanged = ("acknowledged_epoch", "held_channels", "prepared_claims", "boot_id")
    assert [getattr(failing, name) for name in unchanged] == [getattr(before, name) for name in unchanged]


OUT_OF_REACH = healthy_except(daemon=daemon(connected=()), unreachable=("n2",))


def test_members_that_are_out_of_reach_are_named() -> None:
    status = status_of(OUT_OF_REACH)
    assert status.unreachable == ("n2",)
    assert condition(status, CONNECTED) == (
        "False",
        "MembersUnreachable",
        "the IMEX daemon of node n1 cannot reach n2; check these nodes, and the network between them and this"
        " node",
    )
    assert condition(status)[0] == "True"


def test_a_member_is_listed_only_after_it_was_out_of_reach_for_a_while() -> None:
    assert status_of(healthy_except(daemon=daemon(connected=()))).unreachable == ()


def test_a_program_that_has_just_started_keeps_members_listed_until_they_are_connected() -> None:
    before = status_of(OUT_OF_REACH)
    assert status_of(healthy_except(daemon=daemon(connected=())), last=before).unreachable == ("n2",)
    assert status_of(healthy_except(daemon=daemon(connected=None)), last=before).unreachable == ("n2",)
    assert status_of(HEALTHY, last=before).unreachable == ()
    gone = healthy_except(daemon=daemon(connected=()), watched_partition=partition(member()))
    assert status_of(gone, last=before).unreachable == ()


def test_a_daemon_that_is_not_ready_lists_nothing() -> None:
    not_ready = structs.replace(OUT_OF_REACH, daemon=daemon(ImexState.INIT_GPU, connected=None))
    status = status_of(not_ready, last=status_of(OUT_OF_REACH))
    assert status.unreachable == ()
    assert condition(status, CONNECTED)[:2] == ("Unknown", "DaemonNotReady")


def test_connections_that_are_no_longer_reported_are_unknown_and_the_last_known_ones_stay() -> None:
    outdated = structs.replace(OUT_OF_REACH, daemon=daemon(connected=(), unreported_since="2026-01-01T00:00:00Z"))
    status = status_of(outdated)
    assert status.unreachable == ("n2",)
    assert condition(status, CONNECTED) == (
        "Unknown",
        "ConnectionsUnknown",
        "nvidia-imex-ctl -N on node n1 has not reported the connections of the IMEX daemon since"
        " 2026-01-01T00:00:00Z, so the unreachable members are those of that time; check the log of nvidia-imex on"
        " the node",
    )


def test_the_prepared_claims_are_those_of_this_boot_with_and_without_a_channel() -> None:
    held = holding(
        prepared_claim("c1"),
        prepared_claim("c2", channel=-1, partition=""),
        prepared_claim("c3", boot_id="boot-0"),
    )
    assert status_of(HEALTHY, held).prepared_claims == ("c1", "c2")
    no_boot_id = healthy_except(reading=structs.replace(READING, boot_id=""))
    assert status_of(no_boot_id, holding(), status_of(HEALTHY, held)).prepared_claims == ("c1", "c2")


def test_an_unprepare_alone_changes_nothing_and_is_reported_with_the_next_change() -> None:
    before = status_of(HEALTHY, holding(prepared_claim("c1"), prepared_claim("c2")))
    after = holding(prepared_claim("c2"))
    assert status_of(HEALTHY, after, before) == before
    assert status_of(HEALTHY, after.with_claim(prepared_claim("c3")), before).prepared_claims == ("c2", "c3")
    assert status_of(OUT_OF_REACH, after, before).prepared_claims == ("c2",)


READY_THEN = healthy_except(prepares=3)


@pytest.mark.parametrize(
    ("reported", "snapshot", "delay"),
    [
        (READY_THEN, READY_THEN, 0.0),
        (READY_THEN, structs.replace(READY_THEN, prepares=4), 0.75),
        (READY_THEN, structs.replace(READY_THEN, prepares=4, daemon=daemon(ImexState.INIT_GPU)), 0.0),
        (None, structs.replace(READY_THEN, prepares=4), 0.0),
    ],
    ids=["nothing new", "a prepare", "a prepare and another change", "the last report failed"],
)
def test_only_a_report_of_prepared_claims_alone_waits_for_more(
    reported: Snapshot | None, snapshot: Snapshot, delay: float
) -> None:
    assert report_delay(reported, snapshot, last_prepare=99.75, now=100.0) == delay
    assert report_delay(reported, snapshot, last_prepare=98.0, now=100.0) == 0.0


def holding(*claims: PreparedClaim, fence: int = 0) -> Checkpoint:
    checkpoint = EMPTY.with_fence(PARTITION, fence) if fence else EMPTY
    for claim in claims:
        checkpoint = checkpoint.with_claim(claim)
    return checkpoint


def released_in(epoch: int) -> ChannelAssignment:
    return structs.replace(assignment(7, state=ChannelState.RELEASED), released_epoch=epoch)


def channels(status: NVLinkNodeStatus) -> list[int]:
    return [held.channel for held in status.held_channels]


def test_a_channel_is_reported_as_held_with_the_first_claim_that_is_prepared_with_it() -> None:
    before = status_of()
    assert channels(status_of(HEALTHY, holding(prepared_claim("c1")), before)) == [7]
    two = holding(prepared_claim("c1"), prepared_claim("c2", channel=3), fence=1)
    acknowledged = status_of(HEALTHY, two, before)
    assert (channels(acknowledged), acknowledged.acknowledged_epoch) == ([3, 7], 1)
    (first, _) = acknowledged.held_channels
    assert first == HeldChannel(PARTITION, 3, "uid-job")
    three = two.with_claim(prepared_claim("c3", channel=9))
    assert channels(status_of(HEALTHY, three, acknowledged)) == [3, 7, 9]


@pytest.mark.parametrize(
    ("channel_7", "reported"),
    [
        pytest.param((), [], id="unknown to the partition"),
        pytest.param((assignment(7),), [7], id="assigned"),
        pytest.param((released_in(1),), [], id="already asked for"),
        pytest.param((released_in(2),), [7], id="asked for with the next epoch"),
    ],
)
def test_the_end_of_a_hold_is_reported_at_once_only_if_the_controller_waits_for_it(
    channel_7: tuple[ChannelAssignment, ...], reported: list[int]
) -> None:
    before = status_of(HEALTHY, holding(prepared_claim("c1"), fence=2))
    assert channels(before) == [7]
    now = healthy_except(watched_partition=partition(member(), member("n2", 1), channels=channel_7))
    ended = status_of(now, holding(fence=2), before)
    assert channels(ended) == reported
    assert channels(status_of(now, holding(fence=3), ended)) == []


def test_every_held_channel_is_reported_once_with_its_partition() -> None:
    held = holding(
        prepared_claim("c1"),
        prepared_claim("c2"),
        prepared_claim("c3", channel=9, partition="another"),
        prepared_claim("c4", channel=-1, partition=""),
        fence=1,
    )
    assert status_of(HEALTHY, held).held_channels == (
        HeldChannel(PARTITION, 7, "uid-job"),
        HeldChannel("another", 9, "uid-job"),
    )


def test_live_claims_of_another_partition_are_foreign() -> None:
    held = holding(
        prepared_claim("c1"),
        prepared_claim("c2", partition="another"),
        prepared_claim("c3", partition="another", boot_id="boot-0"),
        prepared_claim("c4", channel=-1, partition=""),
    )
    assert foreign_claims(held, BOOT_ID, PARTITION) == ("team/claim-c2",)


def test_after_a_reboot_nothing_is_held() -> None:
    before = status_of(HEALTHY, holding(prepared_claim("c1"), fence=1))
    rebooted = healthy_except(reading=structs.replace(READING, boot_id="boot-2"))
    assert channels(status_of(rebooted, holding(prepared_claim("c1"), fence=1), before)) == []


def test_without_a_boot_id_the_held_channels_are_as_reported_before() -> None:
    before = status_of(HEALTHY, holding(prepared_claim("c1"), fence=1))
    no_boot_id = healthy_except(reading=structs.replace(READING, boot_id=""))
    after = status_of(no_boot_id, holding(fence=1), before)
    assert (channels(after), after.boot_id) == ([7], BOOT_ID)


def test_without_a_boot_id_no_new_epoch_is_acknowledged() -> None:
    before = status_of(HEALTHY, holding(fence=1))
    no_boot_id = healthy_except(reading=structs.replace(READING, boot_id=""))
    assert status_of(no_boot_id, holding(fence=2), before).acknowledged_epoch == 1


@pytest.mark.parametrize("state", [FabricState.BROKEN, FabricState.PENDING])
def test_a_node_whose_fabric_is_broken_or_pending_stays_in_its_partition(state: FabricState) -> None:
    assert status_of(healthy_except(reading=reading(state))).partition == PARTITION
    assert status_of(healthy_except(reading=reading(FabricState.NONE))).partition == ""


@pytest.mark.parametrize("unknown", [DaemonState(problem="the supervisor does not run"), UNKNOWN_DAEMON])
def test_the_partition_of_the_daemon_is_kept_while_nobody_knows_what_runs(unknown: DaemonState) -> None:
    """Otherwise the controller would believe that the daemon has left it, and admit the node elsewhere."""
    elsewhere = status_of(healthy_except(daemon=daemon(partition=OTHER_PARTITION)))
    assert elsewhere.imex_partition == OTHER_PARTITION
    assert status_of(healthy_except(daemon=unknown), last=elsewhere).imex_partition == OTHER_PARTITION
    assert status_of(healthy_except(daemon=DaemonState()), last=elsewhere).imex_partition == ""


def test_a_node_on_which_nothing_is_to_run_yet_reports_at_once() -> None:
    """A new node is a member, and has a daemon, only after its first report."""
    assert healthy_except(daemon=DaemonState()).is_complete
    assert not healthy_except(daemon=UNKNOWN_DAEMON).is_complete


def test_index_and_connections_of_a_daemon_in_another_partition_are_not_reported() -> None:
    status = status_of(healthy_except(daemon=daemon(partition=OTHER_PARTITION)))
    assert (status.partition, status.imex_state) == (PARTITION, ImexState.READY)
    assert (status.index, status.unreachable, status.applied_generation) == (-1, (), 0)


def test_the_start_of_a_daemon_is_reported_when_it_is_ready_and_kept_until_another_one_is() -> None:
    first = status_of(healthy_except(daemon=daemon(started_at="2026-01-01T00:00:00.000000Z")))
    assert first.imex_started_at == "2026-01-01T00:00:00.000000Z"
    second = "2026-01-01T01:00:00.000000Z"
    for down in (daemon(ImexState.INITIALIZING, started_at=second), DaemonState(problem="no answer"), daemon()):
        assert status_of(healthy_except(daemon=down), last=first).imex_started_at == first.imex_started_at
    assert status_of(healthy_except(daemon=daemon(started_at=second)), last=first).imex_started_at == second
