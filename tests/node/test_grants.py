"""May this claim have a channel here? Every answer in a table, and one law that no facts can break."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.computedomain import AllocationMode, ComputeDomain, ComputeDomainSpec, ComputeDomainStatus
from imex_dra.api.meta import AnnotatedMeta, Condition
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import ChannelState, MemberState
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.node.claims import Wish
from imex_dra.node.grants import Grant, decide, expect_domain, without_fabric
from imex_dra.node.readiness import Knowledge, place_of
from tests.node.facts import HEALTHY, PARTITION, assigned, but, daemon, member, partition, reading

OTHER = PartitionId("7b968a6d.2")
CONTROLLER = "check that imex controller runs: kubectl -n imex-dra get lease imex-controller"


def wish(
    uid: str = "uid-job", mode: AllocationMode = AllocationMode.SINGLE, namespace: str = "team", name: str = ""
) -> Wish:
    return Wish(ClaimId(namespace, "claim", "uid-1"), uid, name or uid, mode, ())


def channels(**change: object) -> Knowledge:
    return but(partition=partition(member(), channels=(assigned(**change),)))  # type: ignore[arg-type]


def test_a_healthy_node_grants_the_assigned_channel() -> None:
    assert decide(HEALTHY, wish()) == Grant("job", PARTITION, 7, all=False)


def test_all_is_granted_only_where_the_controller_says_so() -> None:
    assert decide(channels(all_channels=True), wish(mode=AllocationMode.ALL)) == Grant(
        "job", PARTITION, 7, all=True
    )
    assert decide(channels(all_channels=True), wish()) == Grant("job", PARTITION, 7, all=False)


@pytest.mark.parametrize(
    ("known", "asked", "hopeless", "words"),
    [
        (
            but(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus")),
            wish(),
            True,
            "the NVLink fabric of node n1 is broken: GPU 2 fell off the bus; the pod can't run here until the node"
            " is repaired: delete the pod to reschedule it",
        ),
        (
            but(reading=reading(FabricState.PENDING, "no driver yet")),
            wish(),
            False,
            "the NVLink fabric of node n1 is not up, after waiting for 40 s: no driver yet",
        ),
        (
            but(partition=None),
            wish(),
            False,
            f"node n1 is not a member of NVLink partition {PARTITION}, after waiting for 40 s; {CONTROLLER}",
        ),
        (
            but(partition=partition(member(state=MemberState.LEAVING), channels=(assigned(),))),
            wish(),
            False,
            f"node n1 is not a member of NVLink partition {PARTITION}, after waiting for 40 s; {CONTROLLER}",
        ),
        (
            but(partition=partition(member(), channels=(assigned(),), name=OTHER)),
            wish(),
            False,
            f"node n1 is not a member of NVLink partition {PARTITION}, after waiting for 40 s; {CONTROLLER}",
        ),
        (
            but(daemon=daemon(ImexState.WAITING_FOR_RECOVERY)),
            wish(),
            False,
            "the IMEX daemon of node n1 is WAITING_FOR_RECOVERY, not READY, after waiting for 40 s; if it does not"
            " come back, delete the pod to reschedule it",
        ),
        (
            but(daemon=daemon(ImexState.UNAVAILABLE, problem="nvidia-imex ended with SIGSEGV")),
            wish(),
            False,
            "the IMEX daemon of node n1 is UNAVAILABLE, not READY, after waiting for 40 s: nvidia-imex ended with"
            " SIGSEGV; if it does not come back, delete the pod to reschedule it",
        ),
        (
            but(daemon=daemon(slot=4)),
            wish(),
            False,
            f"the IMEX daemon of node n1 runs in slot 4, but the node's slot in NVLink partition {PARTITION} is 0,"
            " after waiting for 40 s; the daemon restarts into it by itself",
        ),
        (
            HEALTHY,
            wish("uid-new", name="team/new"),
            False,
            f"ComputeDomain team/new has no channel in NVLink partition {PARTITION} yet, after waiting for 40 s;"
            f" {CONTROLLER}",
        ),
        (
            channels(state=ChannelState.RESTING),
            wish(),
            False,
            f"ComputeDomain uid-job has no channel in NVLink partition {PARTITION} yet, after waiting for 40 s;"
            f" {CONTROLLER}",
        ),
        (
            HEALTHY,
            wish(namespace="thieves"),
            True,
            "claim thieves/claim asks for ComputeDomain uid-job, which is in another namespace; a channel is given"
            " only inside its ComputeDomain's namespace: create a ComputeDomain in thieves",
        ),
        (
            HEALTHY,
            wish(mode=AllocationMode.ALL),
            True,
            "ComputeDomain team/job asks for allocationMode All, which opens the memory of every workload in the"
            " partition; use Single, or let an administrator label the namespace imex-dra.io/all-channels=allowed",
        ),
    ],
)
def test_what_stands_in_the_way_is_said_and_whether_waiting_helps(
    known: Knowledge, asked: Wish, hopeless: bool, words: str
) -> None:
    verdict = decide(known, asked)
    assert not isinstance(verdict, Grant)
    assert (verdict.hopeless, verdict.words(40)) == (hopeless, words)


def test_what_is_hopeless_is_said_even_while_something_else_can_be_waited_for() -> None:
    verdict = decide(but(daemon=daemon(ImexState.UNAVAILABLE)), wish(namespace="thieves"))
    assert not isinstance(verdict, Grant)
    assert verdict.hopeless


class Facts(NamedTuple):
    """Everything that a grant hangs on; as they stand, they deserve one."""

    fabric: FabricState = FabricState.OK
    imex: ImexState = ImexState.READY
    running_slot: int = 0
    running_in: PartitionId = PARTITION
    seen: PartitionId | None = PARTITION
    member: str = "n1"
    state: MemberState = MemberState.READY
    holder: str = "uid-job"
    namespace: str = "team"
    channel_state: ChannelState = ChannelState.ASSIGNED
    all_allowed: bool = False
    mode: AllocationMode = AllocationMode.SINGLE

    def known(self) -> Knowledge:
        channel = assigned(
            7, self.holder, namespace=self.namespace, all_channels=self.all_allowed, state=self.channel_state
        )
        members = (member(self.member, state=self.state), member("n9", 9))
        return Knowledge(
            "n1",
            reading(self.fabric),
            daemon(self.imex, slot=self.running_slot, partition=self.running_in),
            partition(*members, channels=(channel,), name=self.seen) if self.seen else None,
            place_of(reading(self.fabric), PARTITION),
        )

    def deserve(self) -> bool:
        differing = {name for name, fact in self._asdict().items() if fact != getattr(Facts(), name)}
        harmless = {"all_allowed"} | ({"state"} if self.state is not MemberState.LEAVING else set())
        return not differing - harmless - ({"mode"} if self.all_allowed else set())


SPOILERS: dict[str, st.SearchStrategy[Any]] = {
    "fabric": st.sampled_from(FabricState),
    "imex": st.sampled_from(ImexState),
    "running_slot": st.sampled_from([-1, 1, 9]),
    "running_in": st.just(OTHER),
    "seen": st.sampled_from([OTHER, None]),
    "member": st.just("n2"),
    "state": st.sampled_from(MemberState),
    "holder": st.just("uid-2"),
    "namespace": st.just("thieves"),
    "channel_state": st.sampled_from(ChannelState),
    "all_allowed": st.booleans(),
    "mode": st.sampled_from(AllocationMode),
}
FACTS = (
    st.sets(st.sampled_from(sorted(SPOILERS)), max_size=3)
    .flatmap(lambda names: st.fixed_dictionaries({name: SPOILERS[name] for name in names}))
    .map(lambda spoilt: Facts(**spoilt))
)


@settings(max_examples=400)
@given(facts=FACTS)
def test_a_channel_is_granted_if_and_only_if_every_single_fact_allows_it(facts: Facts) -> None:
    verdict = decide(facts.known(), wish(mode=facts.mode))
    assert isinstance(verdict, Grant) == facts.deserve()
    if isinstance(verdict, Grant):
        assert verdict == Grant("job", PARTITION, 7, all=facts.mode is AllocationMode.ALL)


def domain(uid: str = "uid-job", **change: object) -> ComputeDomain:
    meta = AnnotatedMeta(name="job", namespace="team", uid=uid)
    return ComputeDomain(structs.replace(meta, **change), ComputeDomainSpec())


def test_the_claims_computedomain_is_found_by_its_uid() -> None:
    assert expect_domain(wish(), [domain("uid-2"), domain()]) == domain()


REFUSED = Condition("Accepted", "False", "AllChannelsRefused", "2026-01-01T00:00:00Z", "said by the controller")


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        (
            [domain("uid-remade")],
            "claim team/claim asks for ComputeDomain uid-job, but namespace team has none with this UID: it was"
            " deleted or made anew; delete the pod, so that it gets a claim from the current template",
        ),
        (
            [domain(namespace="owners")],
            "claim team/claim asks for ComputeDomain uid-job, which is in another namespace; a channel is given"
            " only inside its ComputeDomain's namespace: create a ComputeDomain in team",
        ),
        (
            [domain(deletion_timestamp="2026-01-01T00:00:00Z")],
            "ComputeDomain team/job is being deleted and takes no new pods; create it anew, then delete the pod",
        ),
        (
            [structs.replace(domain(), status=ComputeDomainStatus(conditions=(REFUSED,)))],
            "said by the controller",
        ),
    ],
)
def test_no_wait_can_help_without_a_computedomain_that_takes_pods(
    domains: list[ComputeDomain], words: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        expect_domain(wish(), domains)
    assert str(refusal.value) == words


def test_without_fabric_the_pod_runs_without_a_channel() -> None:
    known = but(reading=reading(FabricState.NONE))
    assert without_fabric(known, domain()) == Grant("job", "", -1, all=False)
