"""Leader election on a real API server."""

import asyncio
from collections.abc import Iterator

import pytest

from imex_dra.api.meta import Key
from imex_dra.api.views import LEASES
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Client
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow]

KEY = Key("default", "imex-controller")
TIMING = Timing(lease_duration=16, renew_deadline=12.0, retry_period=0.3)
"""Long, so that a busy machine does not end a leadership."""


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("fragile"), scheduler=False, controller_manager=False) as running:
        yield running


async def test_leadership_is_handed_over_and_ends_when_the_api_server_is_down(fragile: ControlPlane) -> None:
    working: list[str] = []

    async def work(name: str) -> None:
        working.append(name)
        assert len(working) == 1
        try:
            await asyncio.sleep(600)
        finally:
            working.remove(name)

    async def run(name: str) -> None:
        client = Client.connect("imex-controller", fragile.kubeconfig())
        try:
            await LeaderElection(client, KEY, name, Clock(), TIMING).lead(lambda: work(name))
        finally:
            await client.close()

    def candidate(name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(run(name))

    first = candidate("first")
    await until_async(lambda: working == ["first"])
    second = candidate("second")
    first.cancel()
    await until_async(lambda: working == ["second"])
    await asyncio.wait({first})
    client = Client.connect("imex-cli", fragile.kubeconfig())
    lease = await client.get(LEASES, KEY)
    assert lease.spec.holder_identity == "second"
    assert lease.spec.lease_transitions == 1

    fragile.kill_apiserver()
    with pytest.raises(LostLeadership, match="not renewed for 12 s"):
        await second
    assert working == []
    fragile.start_apiserver()
    third = candidate("third")
    await until_async(lambda: working == ["third"])
    third.cancel()
    await asyncio.wait({third})
    assert (await client.get(LEASES, KEY)).spec.holder_identity == ""
    await client.close()
