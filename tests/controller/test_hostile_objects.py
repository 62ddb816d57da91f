"""A real controller serves a ComputeDomain while a user of another namespace stores hostile objects."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import DRIVER
from imex_dra.api.views import EVENTS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ClaimStatus, ResourceClaim
from imex_dra.base.errors import NotFound, Undecodable
from imex_dra.controller import releases
from imex_dra.controller.leader import Leader
from imex_dra.controller.settings import Settings
from imex_dra.controller.templates import template_problem
from imex_dra.kube.client import Client, Selection
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.conftest import install_crds
from tests.controller.cluster import Cluster
from tests.controller.hostileuser import USER, HostileUser, hostile_user
from tests.kube.hostile import DEEP_MANAGED_FIELDS, STORED, claim, template
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow]

DRIVERS = ("gpu.example.com", DRIVER)


@pytest.fixture(scope="module", params=["streamed lists", "paged lists"])
def own_control_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Kubernetes before 1.34 cannot stream lists."""
    flags = ["--feature-gates=WatchList=false"] if request.param == "paged lists" else []
    with ControlPlane(
        tmp_path_factory.mktemp("own-control-plane"),
        users={USER: []},
        scheduler=False,
        controller_manager=False,
        apiserver_flags=flags,
    ) as running:
        install_crds(running)
        yield running


@pytest.fixture
async def cluster(own_control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    client = Client.connect("imex-controller", own_control_plane.kubeconfig())
    yield await Cluster(client).set_up()
    await client.close()


@pytest.fixture
async def user(own_control_plane: ControlPlane, cluster: Cluster) -> AsyncIterator[HostileUser]:
    async with hostile_user(own_control_plane, f"hostile-{cluster.tag}") as created:
        yield created


@contextlib.asynccontextmanager
async def running_leader(cluster: Cluster, **options: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(Leader(cluster.client, "test", **options).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled(), "the controller ended"


async def serve(cluster: Cluster, name: str, node: str) -> None:
    """A new ComputeDomain of another user gets its template, and a pod of it gets a channel."""
    domain = await cluster.create_domain(name)
    await until_async(lambda: cluster.has_template(name), what=f"template {name}")
    await cluster.create_claim(domain, node, pod=name)

    async def has_channel() -> bool:
        await cluster.acknowledge()
        try:
            return (name, "Assigned") in (await cluster.channels()).values()
        except NotFound:  # the partition is created by another reconciler than the template
            return False

    await until_async(has_channel, what=f"a channel for {name}")


async def store_everything(user: HostileUser) -> list[str]:
    """Every hostile value, in claims and templates of our driver and of another; returns the names."""
    names = []
    for (number, value), driver in itertools.product(enumerate(STORED.values()), DRIVERS):
        name = f"odd-{number}-{'ours' if driver == DRIVER else 'other'}"
        await user.create_claim(claim(name, driver, value))
        await user.create_template(template(name, driver, value))
        names.append(name)
    await user.create_claim(claim("managed", DRIVER, b"{}", managedFields=DEEP_MANAGED_FIELDS))
    await user.create_domain("managed", managedFields=DEEP_MANAGED_FIELDS)
    await user.create_claim(claim("large", DRIVER, *[STORED["ten kilobytes"]] * 32))
    return [*names, "managed", "large"]


async def test_hostile_objects_of_one_user_do_not_keep_another_from_being_served(
    cluster: Cluster, user: HostileUser
) -> None:
    node = await cluster.create_node("a")
    async with running_leader(cluster):
        await serve(cluster, "before", node)
        names = await store_everything(user)
        await serve(cluster, "while-they-exist", node)
        for name in names:
            await user.label_claim(name, "yes")
        await serve(cluster, "after-they-changed", node)
    async with running_leader(cluster):
        await serve(cluster, "after-a-restart", node)
        await user.delete_everything()
        await serve(cluster, "after-they-are-gone", node)


async def test_a_status_with_the_largest_integers_does_not_keep_others_from_being_served(
    cluster: Cluster, user: HostileUser
) -> None:
    node = await cluster.create_node("a")
    await user.create_domain("odd")
    accepted = await user.write_domain_status("odd", b'{"nodesOmitted":9223372036854775807}')
    refused = [
        await user.write_domain_status("odd", b'{"nodesOmitted":%s}' % number)
        for number in (b"9223372036854775808", b"1e30", b"1.5", b"9" * 40)
    ]
    assert (accepted, refused) == (200, [422] * 4)
    async with running_leader(cluster):
        await serve(cluster, "other", node)


class NarrowStatus(ClaimStatus, frozen=True):
    reserved_for: int = 0  # type: ignore[assignment]  # not what the API server sends


class NarrowClaim(ResourceClaim, frozen=True):
    status: NarrowStatus = NarrowStatus()


async def test_a_claim_that_cannot_be_decoded_keeps_the_channel_of_its_computedomain(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is missing in the cache, and the live list that confirms a release must not overlook it either."""
    narrow = dataclasses.replace(RESOURCE_CLAIMS, type=NarrowClaim)
    node = await cluster.create_node("a")
    domain = await cluster.create_domain("job")
    reconcilers = await cluster.reconcilers()
    claim = await cluster.create_claim(domain, node)
    await cluster.settle(reconcilers, domain)
    assert await cluster.channels() == {1: ("job", "Assigned")}
    await cluster.delete_domain("job")
    await reconcilers.sync()
    reconcilers.caches.claims.replace([])
    monkeypatch.setattr(releases, "RESOURCE_CLAIMS", narrow)
    # No watch delivers the end of an object that is not in the cache.
    assert await reconcilers.partitions.reconcile(cluster.partition) == releases.RECHECK
    assert await cluster.channels() == {1: ("job", "Assigned")}
    await cluster.delete_claim(claim)
    await reconcilers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("job", "Released")}


async def test_a_list_with_an_object_that_cannot_be_decoded_does_not_look_complete(cluster: Cluster) -> None:
    narrow, selection = dataclasses.replace(RESOURCE_CLAIMS, type=NarrowClaim), Selection(cluster.namespace)
    domain = await cluster.create_domain("job")
    claim = await cluster.create_claim(domain, "n1")
    with pytest.raises(Undecodable, match=f"NarrowClaim {key_of(claim)} cannot be decoded: Expected `int`"):
        await cluster.client.list(narrow, selection)
    assert await cluster.client.list_decodable(narrow, selection) == []


async def test_a_template_whose_owner_was_removed_is_recognized(cluster: Cluster) -> None:
    domain = await cluster.create_domain("job")
    async with running_leader(cluster):
        await until_async(lambda: cluster.has_template("job"))
    key = Key(cluster.namespace, "job")
    created = await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, key)
    assert template_problem(created, domain) is None
    stripped = await cluster.client.patch(
        RESOURCE_CLAIM_TEMPLATES, key, {"metadata": {"ownerReferences": None, "labels": None}}
    )
    problem = template_problem(stripped, domain)
    assert problem is not None
    assert problem.reason == "TemplateOrphaned"


async def test_a_namespace_at_its_channel_limit_is_told_so_and_another_one_is_served(cluster: Cluster) -> None:
    node = await cluster.create_node("a")
    other = Cluster(cluster.client)
    other.partition = cluster.partition
    await other.set_up()

    async def is_told() -> bool:
        events = await cluster.client.list(EVENTS, Selection(cluster.namespace))
        return any(event.reason == "ChannelLimit" and event.regarding.name == "second" for event in events)

    async def has_condition() -> bool:
        status, reason, message = (await cluster.domain_conditions("second")).get("ChannelAssigned", ("", "", ""))
        return (status, reason) == ("False", "ChannelLimit") and cluster.namespace in message

    async with running_leader(cluster, settings=Settings(max_channels_per_namespace=1)):
        await serve(cluster, "first", node)
        second = await cluster.create_domain("second")
        await cluster.create_claim(second, node, pod="second")
        await until_async(is_told)
        await until_async(has_condition)
        await serve(other, "elsewhere", node)
        names = {name for name, _ in (await cluster.channels()).values()}
        assert names == {"first", "elsewhere"}
