"""The status of a ComputeDomain: its conditions over its life, its columns, and what is held back."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api import domainreasons, partitionreasons, reasons
from imex_dra.api.computedomain import (
    ACCEPTED,
    CHANNEL_ASSIGNED,
    DEGRADED,
    DELETING,
    MAX_LISTED_NODES,
    READY,
    SPANS_PARTITIONS,
    TEMPLATE_READY,
    ComputeDomain,
    ComputeDomainStatus,
    DomainPartition,
    DomainSummary,
    Phase,
    Readiness,
)
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import FabricState, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, MemberState, NVLinkPartition
from imex_dra.controller.domainconditions import DomainInputs
from imex_dra.controller.domainstatus import domain_status, is_starting
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import ELSEWHERE, HERE, member, nvlink_node, partition
from tests.controller.test_domain_nodes import assigned, rack, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


class Life:
    """A ComputeDomain whose status is computed again and again, as a reconciler does."""

    def __init__(self, of: ComputeDomain | None = None) -> None:
        self.domain = of or domain()

    def see(
        self,
        names: str,
        *partitions: NVLinkPartition,
        reports: tuple[NVLinkNode, ...] = (),
        now: datetime = NOW,
        **more: Any,
    ) -> ComputeDomainStatus:
        """The status with one claim on each of these nodes."""
        claims = [claim(f"claim-{n}", configuration("uid-job"), nodes=(n,), pods=(f"pod-{n}",)) for n in names]
        found = {each.metadata.name: each for each in reports or map(report, names)}
        status = domain_status(DomainInputs(self.domain, claims, partitions, found, **more), now)
        assert all(condition.observed_generation == 3 for condition in status.conditions)
        self.domain = structs.replace(self.domain, status=status)
        return status


def condition(status: ComputeDomainStatus, type_: str) -> tuple[str, str, str]:
    """Status, reason and message; empty if it is not present."""
    return next(((c.status, c.reason, c.message) for c in status.conditions if c.type == type_), ("", "", ""))


def test_without_pods_a_computedomain_is_not_ready_and_says_how_to_claim() -> None:
    status = Life().see("")
    message = "no pod has claimed a channel yet: pods claim from ResourceClaimTemplate team/job"
    assert condition(status, READY) == ("False", "NoPodsYet", message)
    assert condition(status, CHANNEL_ASSIGNED) == ("False", "NoPodsYet", message)
    assert condition(status, TEMPLATE_READY)[:2] == ("True", "TemplateReady")
    assert {c.type for c in status.conditions} == {READY, CHANNEL_ASSIGNED, TEMPLATE_READY}
    assert status.status is Readiness.NOT_READY
    assert status.summary == DomainSummary(Phase.NO_PODS, message, "0/0", "0", "")


def test_with_every_claim_prepared_it_is_ready() -> None:
    status = Life().see("ab", rack("ab"))
    assert condition(status, READY) == ("True", "NodesReady", "2 of 2 nodes with a claim are ready")
    assert condition(status, CHANNEL_ASSIGNED)[1:] == (
        "ChannelAssigned",
        f"channel 7 of NVLink partition {HERE} is assigned",
    )
    assert status.status is Readiness.READY
    assert status.partitions == (DomainPartition(HERE, 7, 2, 2),)
    assert status.summary == DomainSummary(Phase.READY, condition(status, READY)[2], "2/2", "1", "7")


def test_after_a_job_it_never_says_that_no_pod_has_claimed_a_channel_yet() -> None:
    life = Life()
    life.see("a", rack("a"))
    ended = life.see("", rack("a"), now=LATER)
    message = "no pod holds a claim at the moment; the last claim ended at 2026-01-01T00:05:00Z"
    assert condition(ended, READY) == ("False", "PodsEnded", message)
    assert condition(ended, CHANNEL_ASSIGNED)[0] == "True"
    assert ended.summary.status is Phase.NO_PODS
    taken = life.see("", rack("a"), template_problem=domainreasons.template_taken(template="t", domain="d"))
    assert condition(taken, READY)[1] == "TemplateTaken"
    assert condition(life.see("", rack("a")), READY)[2] == message
    assert life.see("a", rack("a")).claims_ended_at == ""


def test_claims_that_ended_before_a_status_listed_them_are_remembered_by_the_channel() -> None:
    assert condition(Life().see("", rack("a")), READY)[1] == "PodsEnded"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", "NoPodsYet"),
        ("a", "FewerNodes"),
        ("ab", "NodesReady"),
        ("abc", "NodesReady"),
    ],
)
def test_num_nodes_is_a_minimum(names: str, expected: str) -> None:
    partitions = (rack("abc"),) if names else ()
    status = Life(domain(num_nodes=2)).see(names, *partitions)
    assert condition(status, READY)[1] == expected
    assert status.summary.nodes == f"{len(names)}/{max(len(names), 2)}"


def test_the_condition_counts_the_nodes_that_are_not_ready_and_gives_each_cause_once() -> None:
    reports = (
        report("a"),
        report("b", "c"),
        report("c", "b"),
        report("d", fabric=FabricState.BROKEN, fabric_reason="no route"),
    )
    status = Life().see("abcd", rack("abcd", d=MemberState.NOT_READY), reports=reports)
    assert condition(status, READY)[1:] == (
        "NodesNotReady",
        "3 of 4 nodes with a claim are not ready: b and c cannot reach each other; d: the NVLink fabric is broken"
        " (no route)",
    )
    assert status.summary.nodes == "1/4"


def test_five_causes_are_listed_and_512_nodes() -> None:
    names = [f"n{number:03d}" for number in range(600)]
    claims = [claim(name, configuration("uid-job"), nodes=(name,)) for name in names]
    plain = {
        name: nvlink_node(name, fabric=FabricState.NONE, partition="", prepared=(f"uid-{name}",))
        for name in names[:-7]
    }
    status = domain_status(DomainInputs(domain(), claims, (), plain), NOW)
    assert len(status.nodes) == MAX_LISTED_NODES == 512
    assert status.nodes_omitted == 88
    assert {node.name for node in status.nodes[:7]} == set(names[-7:])
    assert condition(status, READY)[2] == (
        "7 of 600 nodes with a claim are not ready: n593 does not report; n594 does not report; n595 does not"
        " report; n596 does not report; n597 does not report and 2 more"
    )


def test_degraded_is_present_while_its_pods_run_and_true_after_a_node_failed() -> None:
    life = Life()
    broken = rack("ab", b=MemberState.UNKNOWN)
    assert condition(life.see("ab", broken), DEGRADED) == ("", "", "")
    assert condition(life.see("ab", rack("ab")), DEGRADED)[0] == "False"
    assert condition(life.see("ab", broken), DEGRADED) == (
        "True",
        "NodesNotReady",
        "1 of 2 nodes with a claim is not ready: b has been unreachable since 2026-11-17T12:03:00Z",
    )
    assert condition(life.see("ab", rack("ab")), DEGRADED)[0] == "False"
    assert condition(life.see("", rack("ab")), DEGRADED) == ("", "", "")


def test_a_pod_that_starts_does_not_degrade_its_computedomain() -> None:
    life = Life()
    life.see("a", rack("ab"))
    starting = life.see("ab", rack("ab"), reports=(report("a"), report("b", prepared=())))
    assert condition(starting, READY)[0] == "False"
    assert condition(starting, DEGRADED)[0] == "False"


def test_pods_in_two_partitions_are_no_error_but_said() -> None:
    life = Life()
    there = partition(member("b", 0), channels=(assigned(9),), name=ELSEWHERE)
    reports = (report("a"), report("b", partition=ELSEWHERE))
    status = life.see("ab", rack("a"), there, reports=reports)
    assert condition(status, READY)[0] == "True"
    assert condition(status, SPANS_PARTITIONS) == (
        "True",
        "SeveralPartitions",
        f"pods with a claim run in 2 NVLink partitions, and GPU memory can be shared only within one: {HERE},"
        f" {ELSEWHERE}; if this is not intended, add a pod affinity with topologyKey nvidia.com/gpu.clique",
    )
    assert (status.summary.nodes, status.summary.partitions, status.summary.channels) == ("2/2", "2", "7,9")
    ended = life.see("a", rack("a"), there, reports=reports)
    assert condition(ended, SPANS_PARTITIONS)[:2] == ("False", "OnePartition")


def test_a_computedomain_without_pods_in_two_partitions_has_no_such_condition() -> None:
    assert condition(Life().see("a", rack("a")), SPANS_PARTITIONS) == ("", "", "")


@pytest.mark.parametrize(
    ("problem", "ready_without_pods"),
    [
        (domainreasons.template_taken(template="t", domain="d"), "TemplateTaken"),
        (domainreasons.template_forged(template="t", domain="d"), "TemplateForged"),
        (domainreasons.template_orphaned(template="t", domain="d"), "NoPodsYet"),
    ],
    ids=["taken", "changed", "orphaned"],
)
def test_a_wrong_template_concerns_only_pods_that_have_no_claim_yet(
    problem: reasons.Explanation, ready_without_pods: str
) -> None:
    without, running = (
        Life().see("", template_problem=problem),
        Life().see("a", rack("a"), template_problem=problem),
    )
    for status in (without, running):
        assert condition(status, TEMPLATE_READY) == ("False", problem.reason, problem.message())
    assert condition(without, READY)[1] == ready_without_pods
    assert condition(running, READY)[0] == "True"


def test_a_refusal_is_the_cause_of_every_condition_and_accepted_stays_afterwards() -> None:
    life = Life()
    refusal = domainreasons.all_channels_refused(domain="team/job")
    refused = life.see("", refusal=refusal)
    for type_ in (READY, ACCEPTED, CHANNEL_ASSIGNED):
        assert condition(refused, type_) == ("False", "AllChannelsRefused", refusal.message())
    assert condition(life.see(""), ACCEPTED)[0] == "True"
    assert condition(Life().see(""), ACCEPTED) == ("", "", "")


@pytest.mark.parametrize(
    ("partitions", "reports", "expected"),
    [
        ((partition(member("a", 0)),), (report("a"),), "NoChannelAssigned"),
        ((), (report("a", fabric=FabricState.NONE, partition=""),), "NoFabric"),
        ((), (report("a"),), "NotAMember"),
        (
            (
                partition(
                    member("a", 0), channels=(assigned(3, state=ChannelState.RELEASED), assigned(4, "uid-x"))
                ),
            ),
            (report("a", channel_count=3),),
            "ChannelsExhausted",
        ),
    ],
    ids=["not yet", "no fabric", "not a member", "exhausted"],
)
def test_channel_assigned_is_false_with_the_cause(
    partitions: tuple[NVLinkPartition, ...], reports: tuple[NVLinkNode, ...], expected: str
) -> None:
    status, reason, message = condition(Life().see("a", *partitions, reports=reports), CHANNEL_ASSIGNED)
    assert (status, reason) == ("False", expected)
    assert "imex controller" not in message


def test_a_channel_limit_is_the_cause_in_its_own_words() -> None:
    full = partition(member("a", 0), channels=(assigned(1, "uid-x"),))
    status = Life().see("a", full, max_channels_per_namespace=1)
    limit = partitionreasons.channel_limit(partition=HERE, namespace="team", limit=1)
    assert condition(status, CHANNEL_ASSIGNED) == ("False", "ChannelLimit", limit.message())
    assert limit.cause in condition(status, READY)[2]
    assert [(entry.reason, entry.message) for entry in status.nodes] == [("ChannelLimit", limit.cause)]
    assert (
        condition(Life().see("a", full, max_channels_per_namespace=2), CHANNEL_ASSIGNED)[1] == "NoChannelAssigned"
    )


def test_one_partition_without_a_channel_makes_channel_assigned_false() -> None:
    there = partition(member("b", 0), name=ELSEWHERE)
    status = Life().see("ab", rack("a"), there, reports=(report("a"), report("b", partition=ELSEWHERE)))
    assert condition(status, CHANNEL_ASSIGNED)[::2] == (
        "False",
        f"ComputeDomain team/job has no channel in NVLink partition {ELSEWHERE} yet",
    )


def test_a_deletion_shows_in_the_column_and_in_its_condition() -> None:
    deleting = domain()
    meta = structs.replace(deleting.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    pods = [f"team/rank-{number}" for number in range(1000)]
    life = Life(structs.replace(deleting, metadata=meta))
    status = life.see("a", rack("a"), deletion=domainreasons.waiting_for_pods(pods=pods))
    assert status.summary.status is Phase.DELETING
    assert status.summary.message == condition(status, DELETING)[2]
    assert condition(status, DELETING)[:2] == ("True", "WaitingForPods")
    assert (
        "team/rank-0, team/rank-1, team/rank-2, team/rank-3, team/rank-4 and 995 more"
        in (condition(status, DELETING)[2])
    )
    assert condition(status, TEMPLATE_READY) == (
        "False",
        "ComputeDomainDeleting",
        "ComputeDomain team/job is being deleted and accepts no new pods",
    )


def test_unknown_conditions_are_kept_and_a_transition_time_changes_only_with_the_status() -> None:
    other = Condition("Other", "True", "Other", "2025-01-01T00:00:00Z", observed_generation=3)
    ready = Condition(READY, "True", "NodesReady", "2025-01-01T00:00:00Z")
    before = domain()
    before = structs.replace(before, status=ComputeDomainStatus(conditions=(other, ready)))
    after = Life(before).see("a", rack("a"))
    assert other in after.conditions
    assert after.conditions[1].last_transition_time == "2025-01-01T00:00:00Z"
    failed = Life(before).see("a", rack("a", a=MemberState.UNKNOWN))
    assert failed.conditions[1].last_transition_time == "2026-01-01T00:00:00Z"


def test_only_a_status_that_says_that_pods_start_is_held_back() -> None:
    waiting = domainreasons.claims_waiting(pods=["pod-b"], causes=[])
    unprepared = (report("a", prepared=()), report("b"))
    assert is_starting(Life().see("ab", rack("ab"), reports=unprepared))
    assert is_starting(Life().see("a", rack("a"), waiting=waiting))
    assert is_starting(Life(domain(num_nodes=2)).see("a", rack("a")))
    assert not is_starting(Life().see(""))
    assert not is_starting(Life().see("ab", rack("ab")))
    assert not is_starting(Life().see("ab", rack("ab", b=MemberState.UNKNOWN), reports=unprepared))
    assert not is_starting(ComputeDomainStatus())
