"""Whether a claim gets a channel: every obstacle in a table, and one property over all facts that matter."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.computedomain import (
    AllocationMode,
    ComputeDomain,
    ComputeDomainSpec,
    ComputeDomainStatus,
    DomainNode,
)
from imex_dra.api.meta import AnnotatedMeta, Condition
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import ChannelState, MemberState, NVLinkPartition
from imex_dra.api.partitionreasons import (
    assignment_blocked,
    channel_limit,
    channels_exhausted,
    member_lists_outdated,
    no_channel_assigned,
    not_a_member,
    reports_pending,
)
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.node.claim import ChannelRequest
from imex_dra.node.grant import (
    Grant,
    Snapshot,
    find_domain,
    grant_or_obstacle,
    grant_without_fabric,
    partition_of,
    peers_obstacle,
    with_controllers_cause,
)
from tests.node.snapshots import (
    HEALTHY,
    OTHER_PARTITION,
    PARTITION,
    assignment,
    daemon,
    healthy_except,
    member,
    partition,
    reading,
)

CHECK_CONTROLLER = "check that imex controller runs: kubectl -n imex-dra get lease imex-controller"


def request(
    uid: str = "uid-job", mode: AllocationMode = AllocationMode.SINGLE, namespace: str = "team", domain: str = ""
) -> ChannelRequest:
    return ChannelRequest(ClaimId(namespace, "claim", "uid-1"), uid, domain or uid, mode, ())


def with_assignment(**changes: Any) -> Snapshot:
    return healthy_except(watched_partition=partition(member(), channels=(assignment(**changes),)))


def partition_at(epoch: int) -> NVLinkPartition:
    live = partition(member(), channels=(assignment(),))
    return structs.replace(live, status=structs.replace(live.status, epoch=epoch))


def test_a_healthy_node_grants_the_assigned_channel() -> None:
    assert grant_or_obstacle(HEALTHY, request()) == Grant("job", PARTITION, 7, all_channels=False)


def test_all_channels_are_granted_only_if_the_assignment_allows_them() -> None:
    allowed = with_assignment(all_channels=True)
    everything = Grant("job", PARTITION, 7, all_channels=True)
    assert grant_or_obstacle(allowed, request(mode=AllocationMode.ALL)) == everything
    assert grant_or_obstacle(allowed, request()) == Grant("job", PARTITION, 7, all_channels=False)


@pytest.mark.parametrize(
    ("snapshot", "requested", "terminal", "message"),
    [
        (
            healthy_except(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus")),
            request(),
            True,
            "n1: the NVLink fabric is broken (GPU 2 fell off the bus); the pod cannot run here until the"
            " node is repaired: delete the pod to reschedule it",
        ),
        (
            healthy_except(reading=reading(FabricState.PENDING, "no driver yet")),
            request(),
            False,
            "n1: the NVLink fabric is not up: no driver yet (waited 40 s)",
        ),
        (
            healthy_except(watched_partition=None),
            request(),
            False,
            f"node n1 has not received NVLinkPartition {PARTITION} from the API server yet (waited 40 s);"
            f" {CHECK_CONTROLLER}",
        ),
        (
            healthy_except(
                watched_partition=partition(member(state=MemberState.LEAVING), channels=(assignment(),))
            ),
            request(),
            False,
            f"node n1 is not a member of NVLink partition {PARTITION} (waited 40 s); {CHECK_CONTROLLER}",
        ),
        (
            healthy_except(
                watched_partition=partition(member(state=MemberState.SUSPENDED), channels=(assignment(),))
            ),
            request(),
            False,
            f"node n1 is suspended in NVLink partition {PARTITION}: it was not reachable, and is admitted again"
            " when its Node is Ready and its IMEX daemon has the current member list (waited 40 s);"
            f" {CHECK_CONTROLLER}",
        ),
        (
            healthy_except(watched_partition=partition(member(), channels=(assignment(),), name=OTHER_PARTITION)),
            request(),
            False,
            f"node n1 has not received NVLinkPartition {PARTITION} from the API server yet (waited 40 s);"
            f" {CHECK_CONTROLLER}",
        ),
        (
            healthy_except(watched_partition=None, foreign_claims=("team/old",)),
            request(),
            False,
            f"node n1 cannot join NVLink partition {PARTITION} yet: it holds channels that are not assigned to the"
            " same ComputeDomains there: team/old (waited 40 s); delete the pods that use them",
        ),
        (
            healthy_except(daemon=daemon(ImexState.WAITING_FOR_RECOVERY)),
            request(),
            False,
            "the IMEX daemon of node n1 is WAITING_FOR_RECOVERY, not READY (waited 40 s); if it does not recover,"
            " delete the pod to reschedule it",
        ),
        (
            healthy_except(
                reading=structs.replace(HEALTHY.reading, imex_problem="nvidia-imex has no capability: update"),
                daemon=daemon(ImexState.UNAVAILABLE, problem="nvidia-imex ended with 1"),
            ),
            request(),
            False,
            "the IMEX daemon of node n1 is UNAVAILABLE, not READY: nvidia-imex has no capability: update (waited"
            " 40 s); if it does not recover, delete the pod to reschedule it",
        ),
        (
            healthy_except(
                reading=structs.replace(HEALTHY.reading, imex_problem="nvidia-imex has no capability: update"),
                daemon=structs.replace(
                    daemon(ImexState.UNAVAILABLE, problem="no supervisor"), is_supervised=False
                ),
            ),
            request(),
            False,
            "the IMEX daemon of node n1 is UNAVAILABLE, not READY: no supervisor (waited 40 s); if it does not"
            " recover, delete the pod to reschedule it",
        ),
        (
            healthy_except(daemon=daemon(ImexState.UNAVAILABLE, problem="nvidia-imex ended with SIGSEGV")),
            request(),
            False,
            "the IMEX daemon of node n1 is UNAVAILABLE, not READY: nvidia-imex ended with SIGSEGV (waited 40 s);"
            " if it does not recover, delete the pod to reschedule it",
        ),
        (
            healthy_except(daemon=daemon(index=4)),
            request(),
            False,
            "the IMEX daemon of node n1 runs with index 4, but the node's index in NVLink partition"
            f" {PARTITION} is 0 (waited 40 s); the daemon restarts with the new index by itself",
        ),
        (
            healthy_except(daemon=daemon(index=4, problem="remove the address of another member")),
            request(),
            False,
            "the IMEX daemon of node n1 runs with index 4, but the node's index in NVLink partition"
            f" {PARTITION} is 0 (waited 40 s); remove the address of another member",
        ),
        (
            HEALTHY,
            request("uid-new", domain="team/new"),
            False,
            f"ComputeDomain team/new has no channel in NVLink partition {PARTITION} yet (waited 40 s);"
            f" {CHECK_CONTROLLER}",
        ),
        (
            with_assignment(state=ChannelState.RELEASED),
            request(),
            False,
            f"ComputeDomain uid-job has no channel in NVLink partition {PARTITION} yet (waited 40 s);"
            f" {CHECK_CONTROLLER}",
        ),
        (
            HEALTHY,
            request(namespace="intruder"),
            True,
            "claim intruder/claim names ComputeDomain uid-job, which is in another namespace, and a channel can"
            " only be used in the namespace of its ComputeDomain; create a ComputeDomain in intruder",
        ),
        (
            HEALTHY,
            request(mode=AllocationMode.ALL),
            True,
            "ComputeDomain team/job requests allocationMode All, which opens the memory of every workload in the"
            " partition; use Single, or ask an administrator to label the namespace"
            " imex-dra.io/all-channels=allowed",
        ),
    ],
)
def test_an_obstacle_is_explained_and_says_whether_waiting_can_help(
    snapshot: Snapshot, requested: ChannelRequest, terminal: bool, message: str
) -> None:
    verdict = grant_or_obstacle(snapshot, requested)
    assert not isinstance(verdict, Grant)
    assert verdict.terminal is terminal
    assert verdict.explanation.message(waited=0 if terminal else 40) == message


def test_a_partition_from_before_the_acknowledged_epoch_grants_nothing() -> None:
    outdated = healthy_except(watched_partition=partition_at(epoch=3))
    verdict = grant_or_obstacle(outdated, request(), fence=4)
    assert not isinstance(verdict, Grant)
    assert not verdict.terminal
    assert verdict.explanation.cause == (
        f"NVLinkPartition {PARTITION} is at epoch 3, but node n1 has acknowledged epoch 4: the object was lost or"
        " restored"
    )
    current = healthy_except(watched_partition=partition_at(epoch=4))
    assert grant_or_obstacle(current, request(), fence=4) == Grant("job", PARTITION, 7, False, epoch=4)


def test_a_terminal_obstacle_is_reported_before_one_that_may_pass() -> None:
    verdict = grant_or_obstacle(
        healthy_except(daemon=daemon(ImexState.UNAVAILABLE)), request(namespace="intruder")
    )
    assert not isinstance(verdict, Grant)
    assert verdict.terminal


class Facts(NamedTuple):
    """Every fact that a grant depends on. With the defaults, the channel is granted."""

    fabric: FabricState = FabricState.OK
    imex: ImexState = ImexState.READY
    daemon_index: int = 0
    daemon_partition: PartitionId = PARTITION
    watched: PartitionId | None = PARTITION
    member: str = "n1"
    state: MemberState = MemberState.READY
    holder: str = "uid-job"
    namespace: str = "team"
    channel_state: ChannelState = ChannelState.ASSIGNED
    all_allowed: bool = False
    mode: AllocationMode = AllocationMode.SINGLE

    def snapshot(self) -> Snapshot:
        channel = assignment(
            7, self.holder, namespace=self.namespace, all_channels=self.all_allowed, state=self.channel_state
        )
        members = (member(self.member, state=self.state), member("n9", 9))
        return Snapshot(
            "n1",
            reading(self.fabric),
            daemon(self.imex, index=self.daemon_index, partition=self.daemon_partition),
            partition_of(reading(self.fabric), PARTITION),
            partition(*members, channels=(channel,), name=self.watched) if self.watched else None,
        )

    def allow_a_grant(self) -> bool:
        changed = {name for name, fact in self._asdict().items() if fact != getattr(Facts(), name)}
        served = self.state not in (MemberState.LEAVING, MemberState.SUSPENDED)
        harmless = {"all_allowed"} | ({"state"} if served else set())
        return not changed - harmless - ({"mode"} if self.all_allowed else set())


CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "fabric": st.sampled_from(FabricState),
    "imex": st.sampled_from(ImexState),
    "daemon_index": st.sampled_from([-1, 1, 9]),
    "daemon_partition": st.just(OTHER_PARTITION),
    "watched": st.sampled_from([OTHER_PARTITION, None]),
    "member": st.just("n2"),
    "state": st.sampled_from(MemberState),
    "holder": st.just("uid-2"),
    "namespace": st.just("other"),
    "channel_state": st.sampled_from(ChannelState),
    "all_allowed": st.booleans(),
    "mode": st.sampled_from(AllocationMode),
}
FACTS = (
    st.sets(st.sampled_from(sorted(CHANGES)), max_size=3)
    .flatmap(lambda names: st.fixed_dictionaries({name: CHANGES[name] for name in names}))
    .map(lambda changes: Facts(**changes))
)


@settings(max_examples=400)
@given(facts=FACTS)
def test_a_channel_is_granted_if_and_only_if_every_fact_allows_it(facts: Facts) -> None:
    verdict = grant_or_obstacle(facts.snapshot(), request(mode=facts.mode))
    assert isinstance(verdict, Grant) == facts.allow_a_grant()
    if isinstance(verdict, Grant):
        assert verdict == Grant("job", PARTITION, 7, all_channels=facts.mode is AllocationMode.ALL)


def domain(uid: str = "uid-job", **changes: object) -> ComputeDomain:
    meta = AnnotatedMeta(name="job", namespace="team", uid=uid)
    return ComputeDomain(structs.replace(meta, **changes), ComputeDomainSpec())


def test_the_computedomain_of_a_claim_is_found_by_its_uid() -> None:
    assert find_domain(request(), [domain("uid-2"), domain()]) == domain()


REFUSED = Condition("Accepted", "False", "AllChannelsRefused", "2026-01-01T00:00:00Z", "refused by the controller")


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (
            [domain("uid-recreated")],
            "claim team/claim names ComputeDomain uid-job, but namespace team has no ComputeDomain with this UID:"
            " it was deleted or recreated; delete the pod, so that it gets a claim from the current template",
        ),
        (
            [domain(namespace="owner")],
            "claim team/claim names ComputeDomain uid-job, which is in another namespace, and a channel can only"
            " be used in the namespace of its ComputeDomain; create a ComputeDomain in team",
        ),
        (
            [domain(deletion_timestamp="2026-01-01T00:00:00Z")],
            "ComputeDomain team/job is being deleted and accepts no new pods; create it again, then delete the"
            " pod",
        ),
        (
            [structs.replace(domain(), status=ComputeDomainStatus(conditions=(REFUSED,)))],
            "refused by the controller",
        ),
    ],
)
def test_a_claim_whose_computedomain_accepts_no_pods_is_rejected(
    domains: list[ComputeDomain], message: str
) -> None:
    with pytest.raises(Rejected) as rejected:
        find_domain(request(), domains)
    assert str(rejected.value) == message


def test_a_claim_on_a_node_without_fabric_gets_no_channel() -> None:
    snapshot = healthy_except(reading=reading(FabricState.NONE))
    assert grant_without_fabric(snapshot, domain()) == Grant("job", "", -1, all_channels=False)


UNASSIGNED = healthy_except(watched_partition=partition(member()))


@pytest.mark.parametrize(
    ("status", "reason", "message", "used"),
    [
        ("False", "ChannelsExhausted", f"NVLink partition {PARTITION} has no free channel; delete some", True),
        ("False", "ChannelsExhausted", f"NVLink partition {OTHER_PARTITION} has no free channel", False),
        ("False", "ChannelLimit", channel_limit(partition=PARTITION, namespace="t", limit=2).message(), True),
        ("False", "NoPodsYet", "no pod has claimed a channel yet", False),
        ("False", "NoChannelAssigned", f"no channel in NVLink partition {PARTITION} yet", False),
        ("True", "ChannelAssigned", f"channel 7 of NVLink partition {PARTITION} is assigned", False),
    ],
    ids=["exhausted", "another partition", "limit", "written before the claim", "no cause", "assigned since"],
)
def test_the_controllers_cause_is_given_only_if_it_explains_the_missing_channel(
    status: str, reason: str, message: str, used: bool
) -> None:
    condition = Condition("ChannelAssigned", status, reason, "2026-01-01T00:00:00Z", message)
    known = structs.replace(domain(), status=ComputeDomainStatus(conditions=(condition,)))
    missing = no_channel_assigned(domain="team/job", partition=PARTITION)
    explained = with_controllers_cause(missing, known, UNASSIGNED)
    assert (explained.message() == message) is used
    assert (explained == missing) is not used
    other = not_a_member(node="n1", partition=PARTITION)
    assert with_controllers_cause(other, known, UNASSIGNED) == other
    assert with_controllers_cause(missing, None, UNASSIGNED) == missing


def test_a_computedomain_in_two_partitions_has_a_cause_for_each() -> None:
    here, there = (channels_exhausted(partition=name, count=7) for name in (PARTITION, OTHER_PARTITION))
    joined = f"{there.message()}; {here.message()}"
    condition = Condition("ChannelAssigned", "False", here.reason, "2026-01-01T00:00:00Z", joined)
    entry = DomainNode("n1", "", PARTITION, reason=here.reason, message=here.message())
    missing = no_channel_assigned(domain="team/job", partition=PARTITION)
    listing_n1 = ComputeDomainStatus(conditions=(condition,), nodes=(entry,))
    known = structs.replace(domain(), status=listing_n1)
    assert with_controllers_cause(missing, known, UNASSIGNED).message() == here.message()
    # Without the entry, it is better to give no cause than that of another partition.
    omitted = structs.replace(domain(), status=ComputeDomainStatus(conditions=(condition,)))
    assert with_controllers_cause(missing, omitted, UNASSIGNED) == missing


def recovering(message: str, **status: Any) -> Snapshot:
    """A node that waits for a channel of a partition which was lost."""
    found = partition(member())
    condition = Condition("ChannelsReusable", "False", "ReportsPending", "2026-01-01T00:00:00Z", message)
    status = {"conditions": (condition,)} | status
    return healthy_except(watched_partition=structs.replace(found, status=structs.replace(found.status, **status)))


def test_a_recovering_partition_says_itself_why_it_assigns_no_channel() -> None:
    """The status of the ComputeDomain is written later, and may never be, if no controller runs."""
    missing = no_channel_assigned(domain="team/job", partition=PARTITION)
    pending = reports_pending(nodes=["n5"]).message()
    blocked = assignment_blocked(partition=PARTITION, cause=pending)
    for domain_status in (None, domain()):
        snapshot = recovering(pending, pending_reports=("n5",))
        assert with_controllers_cause(missing, domain_status, snapshot).message() == blocked.message()
    outdated = member_lists_outdated(nodes=["n2"]).message()
    explained = with_controllers_cause(missing, domain(), recovering(outdated, required_generation=6))
    assert "apply the current member list" in explained.message()
    assert explained.reason is missing.reason


def test_a_cause_that_the_partition_has_overcome_is_not_given() -> None:
    """Seed 158: the controller died between the write of the partition and that of the ComputeDomain."""
    blocked = assignment_blocked(partition=PARTITION, cause=reports_pending(nodes=["n5"]).message())
    entry = DomainNode("n1", "", PARTITION, reason=blocked.reason, message=blocked.message())
    condition = Condition("ChannelAssigned", "False", blocked.reason, "2026-01-01T00:00:00Z", blocked.message())
    outdated = structs.replace(domain(), status=ComputeDomainStatus(conditions=(condition,), nodes=(entry,)))
    missing = no_channel_assigned(domain="team/job", partition=PARTITION)
    assert with_controllers_cause(missing, outdated, UNASSIGNED) == missing


def listing(*nodes: str, omitted: int = 0, clique: str = PARTITION) -> ComputeDomain:
    entries = tuple(DomainNode(node, "", clique) for node in nodes)
    return structs.replace(domain(), status=ComputeDomainStatus(nodes=entries, nodes_omitted=omitted))


THREE = healthy_except(watched_partition=partition(member(), member("n2", 1), member("n3", 2)))
ANNOTATED = "ComputeDomain team/job has the annotation imex-dra.io/readiness=members, and"
NOT_LISTED = (
    f"{ANNOTATED} its status does not list node n1 in NVLink partition {PARTITION} yet; {CHECK_CONTROLLER}"
)


@pytest.mark.parametrize(
    ("snapshot", "listed", "message"),
    [
        (THREE, listing("n1"), ""),
        (THREE, listing("n1", "n2"), ""),
        (
            THREE,
            listing("n1", "n2", "n3", "n9"),
            f"{ANNOTATED} the IMEX daemon of node n1 is not connected to other nodes with claims: n3, n9; check"
            " these nodes, or remove the annotation and create the ComputeDomain again",
        ),
        (
            structs.replace(THREE, daemon=daemon(connected=None)),
            listing("n1", "n2"),
            f"{ANNOTATED} nvidia-imex-ctl -N on node n1 has not reported yet to which nodes its IMEX daemon is"
            " connected; check the log of nvidia-imex on the node",
        ),
        (THREE, listing(), NOT_LISTED),
        (THREE, listing("n2"), NOT_LISTED),
        (THREE, listing("n1", clique=OTHER_PARTITION), NOT_LISTED),
        (THREE, listing("n2", omitted=3), ""),
        (
            THREE,
            structs.replace(
                domain(),
                status=ComputeDomainStatus(
                    nodes=(DomainNode("n1", "", PARTITION), DomainNode("r1-n1", "", OTHER_PARTITION))
                ),
            ),
            "",
        ),
    ],
    ids=[
        "alone",
        "connected",
        "not connected",
        "connections unknown",
        "no claim seen",
        "own claim not seen",
        "listed where it was before",
        "own node omitted",
        "another partition",
    ],
)
def test_a_request_that_waits_for_its_peers_names_those_that_are_missing(
    snapshot: Snapshot, listed: ComputeDomain, message: str
) -> None:
    obstacle = peers_obstacle(snapshot, listed)
    assert (obstacle.explanation.message() if obstacle else "") == message
    assert obstacle is None or not obstacle.terminal
