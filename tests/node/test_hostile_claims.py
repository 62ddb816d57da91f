"""The node program prepares claims with parameters that decoders refuse, or says why it cannot."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator

import httpx2
import msgspec
import pytest

from imex_dra.api.names import DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig
from imex_dra.api.views import RESOURCE_CLAIMS, ClaimStatus, ResourceClaim
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.connection import connect
from imex_dra.node import prepare
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.hostile import STORED, claim
from tests.node.prepare_fixture import ALLOCATION_RESULT, PrepareFixture

pytestmark = pytest.mark.kube


@pytest.fixture
async def http(control_plane: ControlPlane) -> AsyncIterator[httpx2.AsyncClient]:
    async with connect("test", control_plane.kubeconfig()) as connected:
        connected.timeout = httpx2.Timeout(60)  # the API server takes long for the deepest ones on a busy machine
        yield connected


async def create_claim(http: httpx2.AsyncClient, namespace: str, *configs: tuple[str, bytes]) -> ClaimId:
    """Allocated on the node, with configurations for these drivers."""
    name = f"claim-{uuid.uuid4().hex[:6]}"
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    opaque = b",".join(
        b'{"source":"FromClaim","opaque":{"driver":"%s","parameters":%s}}' % (driver.encode(), parameters)
        for driver, parameters in configs
    )
    result = msgspec.json.encode(ALLOCATION_RESULT)
    allocation = b'{"status":{"allocation":{"devices":{"results":[%s],"config":[%s]}}}}' % (result, opaque)
    json, patch = {"Content-Type": "application/json"}, {"Content-Type": "application/merge-patch+json"}
    created = await http.post(path, content=claim(name, DRIVER), headers=json)
    assert created.is_success, created.text
    allocated = await http.patch(f"{path}/{name}/status", content=allocation, headers=patch)
    assert allocated.is_success, allocated.text
    return ClaimId(namespace, name, created.json()["metadata"]["uid"])


@pytest.mark.parametrize("value", STORED.values(), ids=STORED)
async def test_a_claim_is_prepared_whatever_parameters_it_has_for_other_drivers(
    value: bytes, fixture: PrepareFixture, http: httpx2.AsyncClient
) -> None:
    domain, _ = await fixture.create_claim_with_channel(7)
    ours = bytes(ComputeDomainChannelConfig(domain_id=domain.metadata.uid).to_parameters())
    odd = await create_claim(http, fixture.namespace, ("gpu.example.com", value), (DRIVER, ours))
    await fixture.preparer().prepare(odd)
    assert fixture.disk.held_channels() == {odd.uid: 7}


@pytest.mark.parametrize("value", STORED.values(), ids=STORED)
async def test_hostile_parameters_for_this_driver_are_an_invalid_configuration(
    value: bytes, fixture: PrepareFixture, http: httpx2.AsyncClient
) -> None:
    _, plain = await fixture.create_claim_with_channel(7)
    odd = await create_claim(http, fixture.namespace, (DRIVER, value))
    preparer = fixture.preparer()
    failed, prepared = await asyncio.gather(preparer.prepare(odd), preparer.prepare(plain), return_exceptions=True)
    assert isinstance(failed, Rejected)
    assert str(failed).startswith(f"claim {odd} has an invalid configuration for compute-domain.nvidia.com: ")
    assert isinstance(prepared, tuple)
    assert fixture.disk.held_channels() == {plain.uid: 7}


class NarrowStatus(ClaimStatus, frozen=True):
    allocation: int = 0  # type: ignore[assignment]  # not what the API server sends


class NarrowClaim(ResourceClaim, frozen=True):
    status: NarrowStatus = NarrowStatus()


async def test_a_claim_that_cannot_be_decoded_is_rejected_with_a_sentence(
    fixture: PrepareFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, odd = await fixture.create_claim_with_channel(7)
    monkeypatch.setattr(prepare, "RESOURCE_CLAIMS", dataclasses.replace(RESOURCE_CLAIMS, type=NarrowClaim))
    with pytest.raises(Rejected) as rejected:
        await fixture.preparer().prepare(odd)
    assert str(rejected.value) == (
        f"NarrowClaim {odd} cannot be decoded: Expected `int`, got `object` - at `$.status.allocation`; claim from"
        " the ResourceClaimTemplate that the ComputeDomain names"
    )
