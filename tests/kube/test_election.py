"""Leader election on a real API server: what virtual time can't show."""

import asyncio
from collections.abc import Iterator

import pytest

from imex_dra.api.meta import Key
from imex_dra.api.views import LEASES
from imex_dra.base.clock import SystemClock
from imex_dra.kube.client import Client
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.waiting import until

pytestmark = pytest.mark.kube

KEY = Key("default", "imex-controller")
TIMING = Timing(duration=6, deadline=4.0, period=0.3)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("fragile"), scheduler=False, controller_manager=False) as running:
        yield running


async def test_leadership_passes_on_and_ends_with_the_api_server(fragile: ControlPlane) -> None:
    at_work: list[str] = []

    async def work(name: str) -> None:
        at_work.append(name)
        assert len(at_work) == 1
        try:
            await asyncio.sleep(600)
        finally:
            at_work.remove(name)

    async def stand(name: str) -> None:
        client = Client.connect("imex-controller", fragile.kubeconfig())
        try:
            await LeaderElection(client, KEY, name, SystemClock(), TIMING).lead(lambda: work(name))
        finally:
            await client.close()

    def candidate(name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(stand(name))

    first = candidate("first")
    await until(lambda: at_work == ["first"])
    second = candidate("second")
    first.cancel()
    await until(lambda: at_work == ["second"])
    client = Client.connect("imex-cli", fragile.kubeconfig())
    lease = await client.get(LEASES, KEY)
    assert lease.spec.holder_identity == "second"
    assert lease.spec.lease_transitions == 1

    fragile.kill_apiserver()
    with pytest.raises(LostLeadership, match="not renewed for 4 s"):
        await second
    assert at_work == []
    fragile.start_apiserver()
    third = candidate("third")
    await until(lambda: at_work == ["third"])
    third.cancel()
    await asyncio.wait({third})
    assert (await client.get(LEASES, KEY)).spec.holder_identity == ""
    await client.close()
