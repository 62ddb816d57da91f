"""Which changes of a ComputeDomain's status lead to an Event, and that a starting pod leads to none."""

from msgspec import structs

from imex_dra.api import domainreasons
from imex_dra.api.computedomain import ComputeDomainStatus
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.nvlinkpartition import ChannelState, MemberState
from imex_dra.controller.domainevents import announcements, readiness_changed
from tests.controller.claims import domain
from tests.controller.partition import ELSEWHERE, member, partition
from tests.controller.test_domain_nodes import assigned, rack, report
from tests.controller.test_domain_status import Life

NEW = ComputeDomainStatus()


def events(before: ComputeDomainStatus, after: ComputeDomainStatus) -> list[tuple[str, str]]:
    """Type and reason."""
    return [("Warning" if a.warning else "Normal", a.reason) for a in announcements(before, after)]


def test_a_new_computedomain_leads_to_no_event() -> None:
    assert events(NEW, Life().see("")) == []


def test_ready_is_announced_once_for_the_pods_of_a_job() -> None:
    life = Life()
    idle, ready = life.see(""), life.see("a", rack("ab"))
    assert events(idle, ready) == [("Normal", "NodesReady")]
    starting = life.see("ab", rack("ab"), reports=(report("a"), report("b", prepared=())))
    assert events(ready, starting) == []
    more = life.see("ab", rack("ab"))
    assert events(starting, more) == []
    ended = life.see("", rack("ab"))
    assert events(more, ended) == []
    assert events(ended, life.see("a", rack("ab"))) == [("Normal", "NodesReady")]


def test_a_failure_is_announced_when_its_node_or_reason_is_new() -> None:
    life = Life()
    ready = life.see("ab", rack("ab"))
    first = life.see("ab", rack("ab", b=MemberState.UNKNOWN))
    (announcement,) = announcements(ready, first)
    assert announcement.warning
    assert "b has been unreachable since" in announcement.message
    assert events(first, life.see("ab", rack("ab", b=MemberState.SUSPENDED))) == []
    second = life.see("ab", rack("ab", a=MemberState.UNKNOWN, b=MemberState.UNKNOWN))
    assert events(first, second) == [("Warning", "NodesNotReady")]
    assert events(second, first) == []
    (recovered,) = announcements(second, ready)
    assert recovered.reason == "Recovered"
    assert recovered.message == (
        "2 of 2 nodes with a claim are ready again; the ComputeDomain had been degraded since 2026-01-01T00:00:00Z"
    )


def test_a_failure_before_the_first_readiness_is_announced_too() -> None:
    life = Life()
    idle = life.see("")
    assert events(idle, life.see("a", rack("a", a=MemberState.UNKNOWN))) == [("Warning", "NodesNotReady")]


def test_exhausted_channels_and_a_channel_limit_are_announced_by_the_partition_alone() -> None:
    full = partition(member("a", 0), channels=(assigned(1, "uid-x", ChannelState.RELEASED),))
    assert events(NEW, Life().see("a", full, reports=(report("a", channel_count=2),))) == []
    limited = partition(member("a", 0), channels=(assigned(1, "uid-x"),))
    assert events(NEW, Life().see("a", limited, max_channels_per_namespace=1)) == []


def test_two_partitions_a_wrong_template_and_a_refusal_are_warnings() -> None:
    there = partition(member("b", 0), channels=(assigned(9),), name=ELSEWHERE)
    reports = (report("a"), report("b", partition=ELSEWHERE))
    ready = Life().see("a", rack("a"))
    spanning = Life().see("ab", rack("a"), there, reports=reports)
    assert events(ready, spanning) == [("Warning", "SeveralPartitions")]
    assert events(spanning, spanning) == []
    taken = domainreasons.template_taken(template="t", domain="d")
    assert events(NEW, Life().see("", template_problem=taken)) == [("Warning", "TemplateTaken")]
    refusal = domainreasons.all_channels_refused(domain="team/job")
    assert events(NEW, Life().see("", refusal=refusal)) == [("Warning", "AllChannelsRefused")]


def test_nodes_without_nvlink_are_named_in_one_warning() -> None:
    plain = tuple(report(name, fabric=FabricState.NONE, partition="") for name in "ab")
    life = Life()
    ready = life.see("ab", reports=plain)
    (warning,) = [a for a in announcements(NEW, ready) if a.warning]
    assert warning.message == "a, b have no NVLink fabric: their pods get no channel"
    assert events(ready, life.see("ab", reports=plain)) == []


def test_a_deletion_that_waits_is_announced_once_although_its_pods_end_one_by_one() -> None:
    meta = structs.replace(domain().metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    life = Life(structs.replace(domain(), metadata=meta))
    first = life.see("ab", rack("ab"), deletion=domainreasons.waiting_for_pods(pods=["a", "b"]))
    assert ("Normal", "WaitingForPods") in events(NEW, first)
    second = life.see("a", rack("ab"), deletion=domainreasons.waiting_for_pods(pods=["a"]))
    assert events(first, second) == []
    foreign = life.see("", rack("ab"), deletion=domainreasons.foreign_finalizers(finalizers=["x"]))
    assert events(second, foreign) == [("Normal", "ForeignFinalizers")]


def test_a_change_of_readiness_is_a_change_of_status_or_reason() -> None:
    life = Life()
    idle = life.see("")
    assert readiness_changed(NEW, idle) is not None
    ready = life.see("a", rack("ab"))
    assert readiness_changed(idle, ready) is not None
    assert readiness_changed(ready, life.see("ab", rack("ab"))) is None


FIRST, SECOND = "2026-01-01T00:00:00.000000Z", "2026-01-01T01:00:00.000000Z"


def test_the_restart_of_an_imex_daemon_with_prepared_claims_is_announced_once() -> None:
    life = Life()
    starting = life.see("ab", rack("ab"), reports=(report("a", started_at=FIRST), report("b", prepared=())))
    ready = life.see("ab", rack("ab"), reports=(report("a", started_at=FIRST), report("b", started_at=FIRST)))
    assert events(starting, ready) == [("Normal", "NodesReady")]
    down = life.see(
        "ab", rack("ab", a=MemberState.NOT_READY), reports=(report("a", started_at=FIRST), report("b"))
    )
    assert "DaemonRestarted" not in [reason for _, reason in events(ready, down)]
    up = life.see("ab", rack("ab"), reports=(report("a", started_at=SECOND), report("b", started_at=FIRST)))
    (restarted,) = [a for a in announcements(down, up) if a.reason == "DaemonRestarted"]
    assert restarted.warning
    assert restarted.message == (
        "the IMEX daemon of a was restarted: imports of this node's GPU memory by other nodes have ended; restart"
        " the job if it reports errors"
    )
    assert events(up, life.see("ab", rack("ab"), reports=(report("a", started_at=SECOND), report("b")))) == []


def test_several_restarts_are_one_event() -> None:
    life = Life()
    before = life.see("ab", rack("ab"), reports=(report("a", started_at=FIRST), report("b", started_at=FIRST)))
    after = life.see("ab", rack("ab"), reports=(report("a", started_at=SECOND), report("b", started_at=SECOND)))
    (restarted,) = announcements(before, after)
    assert restarted.message.startswith("the IMEX daemons of a, b were restarted: imports of these nodes' GPU")


def test_a_daemon_that_restarted_before_a_claim_was_prepared_is_not_announced() -> None:
    life = Life()
    unprepared = life.see("a", rack("a"), reports=(report("a", prepared=(), started_at=FIRST),))
    restarted = life.see("a", rack("a"), reports=(report("a", prepared=(), started_at=SECOND),))
    prepared = life.see("a", rack("a"), reports=(report("a", started_at=SECOND),))
    assert events(unprepared, restarted) == []
    assert events(restarted, prepared) == [("Normal", "NodesReady")]


def test_a_reboot_is_a_restart_although_its_claims_are_prepared_later() -> None:
    life = Life()
    before = life.see("a", rack("a"), reports=(report("a", started_at=FIRST),))
    booted = life.see("a", rack("a"), reports=(report("a", prepared=(), started_at=SECOND),))
    assert events(before, booted) == []
    assert events(booted, life.see("a", rack("a"), reports=(report("a", started_at=SECOND),))) == [
        ("Warning", "DaemonRestarted")
    ]


def test_the_daemon_of_an_earlier_job_does_not_count() -> None:
    life = Life()
    life.see("a", rack("a"), reports=(report("a", started_at=FIRST),))
    ended = life.see("", rack("a"))
    again = life.see("a", rack("a"), reports=(report("a", started_at=SECOND),))
    assert events(ended, again) == [("Normal", "NodesReady")]
