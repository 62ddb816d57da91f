"""The sweep repairs the disk: claims that no pod uses, missing and orphaned specs, a reloaded driver."""

import fcntl
import os
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import structlog
from msgspec import structs

from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.client import Client
from imex_dra.node.sweep import KUBELET_CHECKPOINT, follow_driver, sweep_forever
from tests.kube.faultproxy import FaultProxy
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.prepare_fixture import ALLOCATION_RESULT, PrepareFixture
from tests.node.publishing_node import running
from tests.node.snapshots import READING
from tests.waiting import until_async

pytestmark = pytest.mark.kube


def sweeping(
    fixture: PrepareFixture, client: Client | None = None, period: float = 0.05
) -> AbstractAsyncContextManager[None]:
    kubelet_checkpoint = fixture.disk.checkpoint.parent / KUBELET_CHECKPOINT
    prepared = fixture.disk.prepared_claims()
    return running(
        sweep_forever(client or fixture.admin, fixture.state, prepared, kubelet_checkpoint, period=period)
    )


def prepare(fixture: PrepareFixture, uid: str, name: str, **changes: Any) -> None:
    fixture.disk.add(structs.replace(prepared_claim(uid, **changes), namespace=fixture.namespace, name=name))


def kubelet_lists(fixture: PrepareFixture, *uids: str) -> None:
    claims = ",".join(f'{{\\"ClaimUID\\":\\"{uid}\\"}}' for uid in uids)
    (fixture.disk.checkpoint.parent / KUBELET_CHECKPOINT).write_text(f'{{"Data":"{claims}"}}')


async def until_prepared(fixture: PrepareFixture, expected: set[str]) -> None:
    disk = fixture.disk
    await until_async(lambda: disk.held_channels().keys() == disk.spec_channels().keys() == expected)


async def test_the_sweep_unprepares_claims_that_no_pod_uses_unless_the_kubelet_lists_them(
    fixture: PrepareFixture,
) -> None:
    used = await fixture.create_claim("uid-job")
    recreated = await fixture.create_claim("uid-job")
    unreserved = await fixture.create_claim("uid-job", reserved=False)
    elsewhere = await fixture.create_claim("uid-job", results=({**ALLOCATION_RESULT, "pool": "n2"},))
    unallocated = await fixture.create_claim("uid-job", results=())
    claims = {
        used.uid: used.name,
        "uid-before": recreated.name,
        unreserved.uid: unreserved.name,
        elsewhere.uid: elsewhere.name,
        unallocated.uid: unallocated.name,
        "uid-deleted": "deleted",
        "uid-listed": "deleted-but-listed",
    }
    for uid, name in claims.items():
        prepare(fixture, uid, name)
    kubelet_lists(fixture, "uid-listed")
    async with sweeping(fixture):
        await until_prepared(fixture, {used.uid, "uid-listed"})
        await until_async(lambda: fixture.state.snapshot.unprepare_sequence == 5)


async def test_after_a_reboot_the_sweep_unprepares_a_claim_that_no_pod_uses_whatever_the_kubelet_lists(
    fixture: PrepareFixture,
) -> None:
    prepare(fixture, "uid-old", "deleted", boot_id="boot-0")
    prepare(fixture, "uid-new", "deleted")
    kubelet_lists(fixture, "uid-old", "uid-new")
    async with sweeping(fixture):
        await until_prepared(fixture, {"uid-new"})


async def test_a_program_that_starts_after_a_reboot_sweeps_as_soon_as_it_knows_the_boot_id(
    fixture: PrepareFixture,
) -> None:
    """The specs are in a directory that a reboot empties, so that the entry has neither a pod nor a spec."""
    prepare(fixture, "uid-old", "deleted", boot_id="boot-0")
    fixture.disk.spec_path("uid-old").unlink()
    kubelet_lists(fixture, "uid-old")
    ready = fixture.state.snapshot.reading
    fixture.update(reading=Reading())
    async with sweeping(fixture, period=1000.0):
        fixture.update(reading=ready)
        await until_prepared(fixture, set())


async def test_an_entry_without_a_spec_is_removed_or_repaired_depending_on_whether_a_pod_uses_it(
    fixture: PrepareFixture,
) -> None:
    """What is left by a program that was killed while it unprepared, or by a cleanup of the CDI directory."""
    used = await fixture.create_claim("uid-job")
    prepare(fixture, used.uid, used.name)
    prepare(fixture, "uid-deleted", "deleted")
    kubelet_lists(fixture)
    for uid in (used.uid, "uid-deleted"):
        fixture.disk.spec_path(uid).unlink()
    async with sweeping(fixture):
        await until_prepared(fixture, {used.uid})


async def test_a_spec_without_an_entry_is_removed_while_the_program_runs(fixture: PrepareFixture) -> None:
    used = await fixture.create_claim("uid-job")
    prepare(fixture, used.uid, used.name)
    async with sweeping(fixture):
        fixture.disk.spec_path("orphan").write_text("{}")
        await until_async(lambda: not fixture.disk.spec_path("orphan").exists())
        assert fixture.disk.spec_path(used.uid).exists()


def test_a_claim_that_the_kubelet_begins_to_use_at_the_last_moment_is_not_unprepared(disk: NodeDisk) -> None:
    """The kubelet lists a claim before it calls prepare, and a prepare needs the lock that is held meanwhile."""
    disk.add(prepared_claim("c1"))
    asked_under_lock = []

    def is_used() -> bool:
        descriptor = os.open(disk.checkpoint.with_suffix(".lock"), os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        asked_under_lock.append(True)
        return True

    assert disk.prepared_claims().remove_unless("c1", is_used) is None
    assert asked_under_lock
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}


async def test_without_the_kubelets_checkpoint_nothing_of_this_boot_is_unprepared(fixture: PrepareFixture) -> None:
    prepare(fixture, "uid-old", "deleted", boot_id="boot-0")
    prepare(fixture, "uid-new", "deleted")
    with structlog.testing.capture_logs() as logs:
        async with sweeping(fixture):
            await until_prepared(fixture, {"uid-new"})
            await until_async(lambda: [e for e in logs if "cannot read the kubelet's checkpoint" in e["event"]])
    kubelet_lists(fixture)
    async with sweeping(fixture):
        await until_prepared(fixture, set())


async def test_a_kubelets_checkpoint_that_was_replaced_proves_nothing(fixture: PrepareFixture) -> None:
    """As a container sees it, if the file is mounted and not its directory: without a name, and never changed."""
    prepare(fixture, "uid-new", "deleted")
    kubelet_lists(fixture, "uid-old")
    path = fixture.disk.checkpoint.parent / KUBELET_CHECKPOINT
    with path.open("rb") as old, structlog.testing.capture_logs() as logs:
        path.unlink()
        path.symlink_to(f"/proc/self/fd/{old.fileno()}")
        async with sweeping(fixture):
            await until_async(lambda: [e for e in logs if "mount its directory" in e.get("error", "")])
        assert fixture.disk.held_channels().keys() == {"uid-new"}


async def test_the_api_server_is_asked_only_about_claims_that_the_kubelet_does_not_list(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    prepare(fixture, "uid-listed", "listed")
    prepare(fixture, "uid-deleted", "deleted")
    kubelet_lists(fixture, "uid-listed")
    async with sweeping(fixture, proxied_client):
        await until_prepared(fixture, {"uid-listed"})
    assert {request.split("/")[-1] for request in proxy.requests} == {"deleted"}


async def test_a_disk_that_fails_does_not_end_the_sweep(fixture: PrepareFixture) -> None:
    prepare(fixture, "uid-deleted", "deleted")
    kubelet_lists(fixture)
    lock = fixture.disk.checkpoint.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()  # cannot be opened for writing, not even by root
    with structlog.testing.capture_logs() as logs:
        async with sweeping(fixture):
            await until_async(lambda: len([e for e in logs if "cannot be checked" in e["event"]]) >= 2)
            lock.rmdir()
            await until_prepared(fixture, set())


async def test_after_a_driver_reload_all_specs_of_this_boot_are_rewritten_without_a_prepare(
    fixture: PrepareFixture,
) -> None:
    disk = fixture.disk
    prepare(fixture, "c1", "one")
    prepare(fixture, "c2", "two")
    prepare(fixture, "old", "old", boot_id="boot-0")

    def majors() -> list[int]:
        return [disk.container_edits(uid)["deviceNodes"][0]["major"] for uid in ("c1", "c2", "old")]

    async with running(follow_driver(fixture.state, disk.prepared_claims())):
        disk.root.load_driver(99)
        fixture.update(reading=structs.replace(READING, channel_major=99))
        await until_async(lambda: majors() == [99, 99, 234])


async def test_specs_that_cannot_be_rewritten_after_a_driver_reload_are_tried_again(
    fixture: PrepareFixture,
) -> None:
    disk = fixture.disk
    prepare(fixture, "c1", "one")
    (disk.root.path / "proc/devices").unlink()
    with structlog.testing.capture_logs() as logs:
        async with running(follow_driver(fixture.state, disk.prepared_claims())):
            fixture.update(reading=structs.replace(READING, channel_major=99))
            await until_async(lambda: logs)
            disk.root.load_driver(99)
            await until_async(lambda: disk.container_edits("c1")["deviceNodes"][0]["major"] == 99)


async def test_the_sweep_keeps_claims_while_the_api_server_fails(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    fixture.disk.add(structs.replace(prepared_claim("c1"), namespace=fixture.namespace))
    kubelet_lists(fixture)
    proxy.answer(503, times=10_000)  # more than the sweep can ask for: it never gets a true answer
    async with sweeping(fixture, proxied_client):
        await until_async(
            lambda: len([request for request in proxy.requests if RESOURCE_CLAIMS.plural in request]) >= 8
        )
    assert fixture.disk.held_channels() == {"c1": 7}
