"""Reading a claim: what it asks for, and every reason to refuse it, in the words that reach the pod."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.names import DRIVER
from imex_dra.api.views import (
    Allocation,
    AllocationResult,
    ClaimStatus,
    DeviceAllocation,
    DeviceConfig,
    OpaqueConfig,
    ResourceClaim,
)
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.node.claims import read_wish

ASKED = ClaimId("team", "job-0-channel", "uid-1")
CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": "uid-job"}
INVALID = (
    "claim team/job-0-channel has a configuration for compute-domain.nvidia.com that can't be read: {};"
    " claim from the ResourceClaimTemplate that the ComputeDomain names"
)
NOT_HERE = "claim team/job-0-channel can't be prepared on node n1: {}; delete the pod"


def seat(request: str = "channel", *, node: str = "n1", driver: str = DRIVER) -> AllocationResult:
    return AllocationResult(request, driver, node, "channel-3")


def config(*requests: str, driver: str = DRIVER, source: str = "FromClaim", **parameters: Any) -> DeviceConfig:
    return DeviceConfig(requests, OpaqueConfig(driver, CONFIG | parameters), source)


def claim(*config: DeviceConfig, results: tuple[AllocationResult, ...] = (seat(),)) -> ResourceClaim:
    allocation = Allocation(DeviceAllocation(results, config))
    return ResourceClaim(
        AnnotatedMeta(name="job-0-channel", namespace="team", uid="uid-1"), status=ClaimStatus(allocation)
    )


def test_a_claim_from_the_template_is_a_wish_for_one_channel() -> None:
    wish = read_wish(ASKED, claim(config("channel")), "n1")
    assert (wish.claim, wish.domain_uid, wish.mode) == (ASKED, "uid-job", AllocationMode.SINGLE)
    assert wish.results == (seat(),)


def test_a_config_without_requests_is_for_all_of_them() -> None:
    assert read_wish(ASKED, claim(config()), "n1").domain_uid == "uid-job"


def test_the_last_config_wins_over_the_classes() -> None:
    given = claim(config(source="FromClass", domainID="uid-class"), config(domainID="uid-claim"))
    assert read_wish(ASKED, given, "n1").domain_uid == "uid-claim"


def test_a_config_that_loses_need_not_be_readable() -> None:
    given = claim(config(source="FromClass", nonsense=1), config())
    assert read_wish(ASKED, given, "n1").domain_uid == "uid-job"


def test_other_drivers_results_and_configs_are_none_of_our_business() -> None:
    given = claim(
        config("channel"),
        config("gpu", driver="gpu.nvidia.com", nonsense=1),
        results=(seat("gpu", driver="gpu.nvidia.com", node="pool-of-gpus"), seat()),
    )
    assert read_wish(ASKED, given, "n1").results == (seat(),)


def test_several_requests_for_one_computedomain_share_its_channel() -> None:
    given = claim(config(), results=(seat("one"), seat("two")))
    assert [result.request for result in read_wish(ASKED, given, "n1").results] == ["one", "two"]


def test_all_is_asked_for_as_soon_as_one_request_asks_for_it() -> None:
    given = claim(config("one"), config("two", allocationMode="All"), results=(seat("one"), seat("two")))
    assert read_wish(ASKED, given, "n1").mode is AllocationMode.ALL


@pytest.mark.parametrize("named", ["channel", "channel/small"])
def test_an_alternative_of_a_request_is_configured_by_either_name(named: str) -> None:
    given = claim(config(named), results=(seat("channel/small"),))
    assert read_wish(ASKED, given, "n1").domain_uid == "uid-job"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (claim(), INVALID.format("there is none for request channel")),
        (claim(config("other")), INVALID.format("there is none for request channel")),
        (claim(config("chan")), INVALID.format("there is none for request channel")),
        (claim(config(driver="gpu.nvidia.com")), INVALID.format("there is none for request channel")),
        (claim(DeviceConfig()), INVALID.format("there is none for request channel")),
        (claim(config(domainId="x")), INVALID.format("Object contains unknown field `domainId`")),
        (claim(config(domainID="")), INVALID.format("domainID is empty - at `$.domainID`")),
        (
            claim(config(kind="ComputeDomainDaemonConfig")),
            INVALID.format("Invalid enum value 'ComputeDomainDaemonConfig' - at `$.kind`"),
        ),
        (
            claim(config(), config(allocationMode="all")),
            INVALID.format("Invalid enum value 'all' - at `$.allocationMode`"),
        ),
        (
            claim(DeviceConfig(opaque=OpaqueConfig(DRIVER, None))),
            INVALID.format("Expected `object`, got `null`"),
        ),
        (
            claim(config("one"), config("two", domainID="uid-2"), results=(seat("one"), seat("two"))),
            INVALID.format("its requests name several ComputeDomains"),
        ),
        (
            claim(config(), results=()),
            NOT_HERE.format("nothing in it is allocated from compute-domain.nvidia.com"),
        ),
        (
            claim(config(), results=(seat(driver="gpu.nvidia.com"),)),
            NOT_HERE.format("nothing in it is allocated from compute-domain.nvidia.com"),
        ),
        (claim(config(), results=(seat(node="n2"),)), NOT_HERE.format("it is allocated on node n2")),
        (
            claim(config(), results=(seat("one"), seat("two", node="n2"))),
            NOT_HERE.format("it is allocated on node n2"),
        ),
        (
            claim(config(), results=(seat(), seat())),
            NOT_HERE.format("a request asks for more than one channel, and there is only one"),
        ),
        (
            structs.replace(claim(config()), status=ClaimStatus()),
            NOT_HERE.format("it is not allocated"),
        ),
        (
            structs.replace(claim(config()), metadata=AnnotatedMeta(name="job-0-channel", uid="uid-2")),
            "claim team/job-0-channel is not the one the kubelet asks for: its UID is uid-2, not uid-1;"
            " delete the pod",
        ),
    ],
)
def test_what_can_never_be_prepared_here_is_refused_with_the_reason(given: ResourceClaim, words: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_wish(ASKED, given, "n1")
    assert str(refusal.value) == words
