"""Parsing a ResourceClaim: the channel that it requests, and the exact error if it can never be prepared here."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

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
from imex_dra.node.claim import parse_claim

CLAIM = ClaimId("team", "job-0-channel", "uid-1")
CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": "uid-job"}
INVALID = (
    "claim team/job-0-channel has an invalid configuration for compute-domain.nvidia.com: {};"
    " claim from the ResourceClaimTemplate that the ComputeDomain names"
)
NOT_HERE = "claim team/job-0-channel cannot be prepared on node n1: {}; delete the pod"


def result(request: str = "channel", *, node: str = "n1", driver: str = DRIVER) -> AllocationResult:
    return AllocationResult(request, driver, node, "channel-3")


def config(*requests: str, driver: str = DRIVER, source: str = "FromClaim", **parameters: Any) -> DeviceConfig:
    return DeviceConfig(requests, OpaqueConfig(driver, Raw(msgspec.json.encode(CONFIG | parameters))), source)


def claim(*config: DeviceConfig, results: tuple[AllocationResult, ...] = (result(),)) -> ResourceClaim:
    allocation = Allocation(DeviceAllocation(results, config))
    return ResourceClaim(
        AnnotatedMeta(name="job-0-channel", namespace="team", uid="uid-1"), status=ClaimStatus(allocation)
    )


def test_a_claim_from_the_template_requests_one_channel() -> None:
    request = parse_claim(CLAIM, claim(config("channel")), "n1")
    assert (request.claim, request.domain_uid, request.mode) == (CLAIM, "uid-job", AllocationMode.SINGLE)
    assert request.results == (result(),)


def test_a_config_without_requests_applies_to_all_requests() -> None:
    assert parse_claim(CLAIM, claim(config()), "n1").domain_uid == "uid-job"


def test_the_config_of_the_claim_overrides_that_of_the_device_class() -> None:
    given = claim(config(source="FromClass", domainID="uid-class"), config(domainID="uid-claim"))
    assert parse_claim(CLAIM, given, "n1").domain_uid == "uid-claim"


def test_the_config_of_the_claim_wins_whatever_the_order() -> None:
    given = claim(config(domainID="uid-claim"), config(source="FromClass", domainID="uid-class"))
    assert parse_claim(CLAIM, given, "n1").domain_uid == "uid-claim"


def test_of_several_configs_of_the_device_class_the_last_wins() -> None:
    given = claim(config(source="FromClass"), config(source="FromClass", domainID="uid-last"))
    assert parse_claim(CLAIM, given, "n1").domain_uid == "uid-last"


def test_an_overridden_config_may_be_invalid() -> None:
    given = claim(config(source="FromClass", nonsense=1), config())
    assert parse_claim(CLAIM, given, "n1").domain_uid == "uid-job"


def test_results_and_configs_of_other_drivers_are_ignored() -> None:
    given = claim(
        config("channel"),
        config("gpu", driver="gpu.nvidia.com", nonsense=1),
        results=(result("gpu", driver="gpu.nvidia.com", node="gpu-pool"), result()),
    )
    assert parse_claim(CLAIM, given, "n1").results == (result(),)


def test_several_requests_for_one_computedomain_share_its_channel() -> None:
    given = claim(config(), results=(result("one"), result("two")))
    assert [found.request for found in parse_claim(CLAIM, given, "n1").results] == ["one", "two"]


def test_the_mode_is_all_if_any_request_has_it() -> None:
    given = claim(config("one"), config("two", allocationMode="All"), results=(result("one"), result("two")))
    assert parse_claim(CLAIM, given, "n1").mode is AllocationMode.ALL


@pytest.mark.parametrize("name", ["channel", "channel/small"])
def test_a_config_names_the_request_or_its_alternative(name: str) -> None:
    given = claim(config(name), results=(result("channel/small"),))
    assert parse_claim(CLAIM, given, "n1").domain_uid == "uid-job"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (claim(), INVALID.format("request channel has none")),
        (claim(config("other")), INVALID.format("request channel has none")),
        (claim(config("chan")), INVALID.format("request channel has none")),
        (claim(config(driver="gpu.nvidia.com")), INVALID.format("request channel has none")),
        (claim(DeviceConfig()), INVALID.format("request channel has none")),
        (claim(config(domainId="x")), INVALID.format("Object contains unknown field `domainId`")),
        (claim(config(domainID="")), INVALID.format("domainID is empty - at `$.domainID`")),
        (
            claim(config(kind="ComputeDomainDaemonConfig")),
            INVALID.format("Invalid enum value 'ComputeDomainDaemonConfig' - at `$.kind`"),
        ),
        (
            claim(config(source="FromClass"), config(allocationMode="all")),
            INVALID.format("Invalid enum value 'all' - at `$.allocationMode`"),
        ),
        (
            claim(DeviceConfig(opaque=OpaqueConfig(DRIVER))),
            INVALID.format("Expected `object`, got `null`"),
        ),
        (
            claim(config("channel"), config("channel")),
            INVALID.format("request channel has 2, and only one is allowed"),
        ),
        (
            claim(config(), config("channel/small"), results=(result("channel/small"),)),
            INVALID.format("request channel/small has 2, and only one is allowed"),
        ),
        (
            claim(config(source="FromClass", domainID=7)),
            INVALID.format("Expected `str`, got `int` - at `$.domainID`"),
        ),
        (claim(config(comment="x" * 2048)), INVALID.format("it is longer than 2048 bytes")),
        (
            claim(config("one"), config("two", domainID="uid-2"), results=(result("one"), result("two"))),
            INVALID.format("its requests name several ComputeDomains"),
        ),
        (
            claim(config(), results=()),
            NOT_HERE.format("none of its devices is allocated from compute-domain.nvidia.com"),
        ),
        (
            claim(config(), results=(result(driver="gpu.nvidia.com"),)),
            NOT_HERE.format("none of its devices is allocated from compute-domain.nvidia.com"),
        ),
        (claim(config(), results=(result(node="n2"),)), NOT_HERE.format("it is allocated on node n2")),
        (
            claim(config(), results=(result("one"), result("two", node="n2"))),
            NOT_HERE.format("it is allocated on node n2"),
        ),
        (
            claim(config(), results=(result(), result())),
            NOT_HERE.format("a request asks for more than one channel, and a claim gets only one"),
        ),
        (
            structs.replace(claim(config()), status=ClaimStatus()),
            NOT_HERE.format("it is not allocated"),
        ),
        (
            structs.replace(claim(config()), metadata=AnnotatedMeta(name="job-0-channel", uid="uid-2")),
            "claim team/job-0-channel has UID uid-2, but the kubelet requested uid-1; delete the pod",
        ),
    ],
)
def test_a_claim_that_can_never_be_prepared_here_is_rejected(given: ResourceClaim, message: str) -> None:
    with pytest.raises(Rejected) as rejected:
        parse_claim(CLAIM, given, "n1")
    assert str(rejected.value) == message
