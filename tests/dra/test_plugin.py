"""The DRA plugin over real gRPC and unix sockets."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from imex_dra.base.errors import Misconfigured, NotYet, Rejected
from imex_dra.dra import plugin
from imex_dra.dra.health import DeviceHealth, HealthState
from imex_dra.dra.plugin import ClaimId, PreparedDevice, Registration, registration_problem
from imex_dra.dra.sockets import remove_abandoned, sockets
from tests.dra.kubeletclient import connect
from tests.waiting import until_async


class FakeHealth:
    """Streams what a test puts into `reports`."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[list[DeviceHealth]] = asyncio.Queue()

    async def watch_health(self, refresh: float) -> AsyncIterator[list[DeviceHealth]]:
        while True:
            yield await self.reports.get()


serving = partial(plugin.serving, health=FakeHealth(), deregistration_delay=0.0)


class FakeDriver:
    """Records its calls. A claim fails if it is in `failures`, and waits if it is in `blocked`."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.calls: list[tuple[str, ClaimId]] = []
        self.failures: dict[str, Exception] = {}
        self.blocked: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        await self._serve("prepare", claim)
        return (PreparedDevice("channel", "n1", f"channel-0{self.name}", (f"imex-dra.io/channel={claim.uid}",)),)

    async def unprepare(self, claim: ClaimId) -> None:
        await self._serve("unprepare", claim)

    async def _serve(self, verb: str, claim: ClaimId) -> None:
        self.calls.append((verb, claim))
        if claim.uid in self.blocked:
            try:
                await self.blocked[claim.uid].wait()
            except asyncio.CancelledError:
                self.cancelled.append(claim.uid)
                raise
        if claim.uid in self.failures:
            raise self.failures[claim.uid]


@pytest.fixture
def kubelet_directory() -> Iterator[Path]:
    """Not tmp_path, which is too long for a unix socket."""
    path = Path(tempfile.mkdtemp(prefix="k-"))
    yield path
    shutil.rmtree(path)


def claims(*uids: str) -> list[ClaimId]:
    return [ClaimId("team", f"claim-{uid}", uid) for uid in uids]


async def test_the_registration_socket_returns_the_driver_its_version_and_its_endpoint(
    kubelet_directory: Path,
) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), connect(paths.registration) as kubelet:
        info = await kubelet.info()
        assert (info.type, info.name) == ("DRAPlugin", "compute-domain.nvidia.com")
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert Path(info.endpoint) == paths.service
        assert Path(info.endpoint).is_socket()
        await kubelet.notify(registered=True)
        await kubelet.notify(registered=False, error="no")


def test_the_sockets_are_in_the_directories_that_the_kubelet_watches(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    assert paths.registration.parent == kubelet_directory / "plugins_registry"
    assert paths.service.parent == kubelet_directory / "plugins" / "compute-domain.nvidia.com"
    assert paths.registration.name.endswith("-reg.sock")


async def test_a_prepared_claim_is_returned_with_its_devices(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    async with serving(driver, paths), connect(paths.service) as kubelet:
        responses = await kubelet.prepare(*claims("u1"))
        (device,) = responses["u1"].devices
        assert list(device.request_names) == ["channel"]
        assert (device.pool_name, device.device_name) == ("n1", "channel-0")
        assert list(device.cdi_device_ids) == ["imex-dra.io/channel=u1"]
        assert responses["u1"].error == ""
        assert driver.calls == [("prepare", ClaimId("team", "claim-u1", "u1"))]


async def test_every_claim_has_its_own_response_and_failures_do_not_affect_other_claims(
    kubelet_directory: Path,
) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u2": NotYet("the daemon of node n1 is not READY"), "u4": Rejected("no such ComputeDomain")}
    async with serving(driver, paths), connect(paths.service) as kubelet:
        prepared = await kubelet.prepare(*claims("u1", "u2", "u3", "u4"))
        unprepared = await kubelet.unprepare(*claims("u1", "u2", "u3"))
    assert {uid: (len(response.devices), response.error) for uid, response in prepared.items()} == {
        "u1": (1, ""),
        "u2": (0, "the daemon of node n1 is not READY"),
        "u3": (1, ""),
        "u4": (0, "no such ComputeDomain"),
    }
    assert unprepared == {"u1": "", "u2": "the daemon of node n1 is not READY", "u3": ""}


async def test_a_request_without_claims_has_an_empty_response(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), connect(paths.service) as kubelet:
        assert await kubelet.prepare() == {}
        assert await kubelet.unprepare() == {}


async def test_the_claims_of_a_request_are_prepared_concurrently(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.blocked = {"u1": asyncio.Event()}
    async with serving(driver, paths), connect(paths.service) as kubelet:
        call = asyncio.create_task(kubelet.prepare(*claims("u1", "u2")))
        await kubelet.unprepare(*claims("u3"))
        await until_async(lambda: len(driver.calls) == 3)
        driver.blocked["u1"].set()
        assert (await call).keys() == {"u1", "u2"}


async def test_an_unexpected_error_is_reported_with_its_type_and_the_log_to_read(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u1": OSError(28, "No space left on device"), "u2": KeyError("missing")}
    async with serving(driver, paths), connect(paths.service) as kubelet:
        prepared = await kubelet.prepare(*claims("u1", "u2"))
        unprepared = await kubelet.unprepare(*claims("u2"))
    assert prepared["u1"].error == (
        "claim team/claim-u1: unexpected OSError: [Errno 28] No space left on device; see the log of imex node on"
        " this node"
    )
    assert unprepared["u2"] == prepared["u2"].error
    assert "unexpected KeyError: 'missing'" in prepared["u2"].error


async def test_an_error_without_a_message_is_not_reported_as_success(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u1": NotYet()}
    async with serving(driver, paths), connect(paths.service) as kubelet:
        response = (await kubelet.prepare(*claims("u1")))["u1"]
        assert response.error


async def test_a_cancelled_call_cancels_the_prepare(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.blocked = {"u1": asyncio.Event()}
    async with serving(driver, paths):
        async with connect(paths.service) as kubelet:
            call = asyncio.create_task(kubelet.prepare(*claims("u1")))
            await until_async(lambda: driver.calls)
            call.cancel()
            await asyncio.wait({call})
        await until_async(lambda: driver.cancelled == ["u1"])


@pytest.mark.parametrize("authority", ["localhost", "%2Fvar%2Flib%2Fkubelet%2Fdra.sock", "unix:@", "a b", "_"])
async def test_calls_with_any_authority_header_are_served(kubelet_directory: Path, authority: str) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), connect(paths.service, authority=authority) as kubelet:
        assert (await kubelet.prepare(*claims("u1"))).keys() == {"u1"}


async def test_an_unknown_service_is_unimplemented_and_the_plugin_continues_to_serve(
    kubelet_directory: Path,
) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), aio.insecure_channel(f"unix:{paths.service}") as channel:
        call: Any = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources")
        with pytest.raises(aio.AioRpcError) as refused:
            await call(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        async with connect(paths.service) as kubelet:
            assert (await kubelet.prepare(*claims("u1"))).keys() == {"u1"}


@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_device_health_is_streamed_to_every_kubelet_that_watches(
    kubelet_directory: Path, service: str
) -> None:
    paths, health = sockets(kubelet_directory, "a1b2c3"), FakeHealth()
    async with serving(FakeDriver(), paths, health=health), connect(paths.service) as kubelet:
        stream = kubelet.watch_health(service)
        for state, expected in ((HealthState.HEALTHY, 1), (HealthState.UNHEALTHY, 2), (HealthState.UNKNOWN, 0)):
            health.reports.put_nowait([DeviceHealth("n1", "channel-3", state, "x" * 2000)])
            (device,) = (await anext(stream)).devices
            assert (device.device.pool_name, device.device.device_name) == ("n1", "channel-3")
            assert device.health == expected
            assert device.health_check_timeout_seconds == 30
            assert device.message == "x" * 1024
        assert (await kubelet.prepare(*claims("u1"))).keys() == {"u1"}


@pytest.mark.parametrize("directory", ["x" * 90, "ü" * 45], ids=["in characters", "in bytes"])
def test_a_socket_path_that_is_too_long_is_rejected(directory: str) -> None:
    with pytest.raises(Misconfigured, match=r"reg\.sock exceeds 107 bytes: choose a shorter --kubelet-dir"):
        sockets(Path("/tmp") / directory, "a1b2c3")


async def test_a_socket_path_of_the_maximum_length_works(kubelet_directory: Path) -> None:
    rest = 107 - len(str(sockets(kubelet_directory, "").registration))
    paths = sockets(kubelet_directory, "x" * rest)
    assert len(str(paths.registration)) == 107
    async with serving(FakeDriver(), paths), connect(paths.registration) as kubelet:
        assert Path((await kubelet.info()).endpoint) == paths.service


async def test_leftover_socket_files_are_replaced_and_removed_at_the_end(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("left by a killed plugin")
    async with serving(FakeDriver(), paths), connect(paths.service) as kubelet:
        assert await kubelet.prepare(*claims("u1"))
    assert [path for path in kubelet_directory.rglob("*") if not path.is_dir()] == []


async def test_a_plugin_that_is_registered_removes_the_sockets_of_killed_ones_and_no_others(
    kubelet_directory: Path,
) -> None:
    """A kubelet that restarts would try to register each of them, again and again."""
    new, live, killed, starting = (sockets(kubelet_directory, name) for name in ("new", "live", "kill", "start"))
    foreign = killed.registration.with_name("other-driver-kill-reg.sock")
    async with serving(FakeDriver(), live), serving(FakeDriver(), new):
        for path in (*killed, *starting, foreign):
            with socket.socket(socket.AF_UNIX) as abandoned:
                abandoned.bind(str(path))
        for path in (*killed, *live, foreign):
            os.utime(path, (0, 0))
        async with connect(new.registration) as kubelet:
            await kubelet.notify(registered=True)
        assert [path.exists() for path in killed] == [False, False]
        assert all(path.exists() for path in (*new, *live, *starting, foreign))
        remove_abandoned(new, older_than=-1.0)
        assert [path.exists() for path in (*starting, *live)] == [False, False, True, True]


async def test_two_instances_serve_at_the_same_time_and_stop_independently(kubelet_directory: Path) -> None:
    old, new = sockets(kubelet_directory, "aaaaaa"), sockets(kubelet_directory, "bbbbbb")
    async with serving(FakeDriver("-new"), new):
        async with serving(FakeDriver("-old"), old):
            for paths, device in ((old, "channel-0-old"), (new, "channel-0-new")):
                async with connect(paths.registration) as kubelet:
                    endpoint = Path((await kubelet.info()).endpoint)
                async with connect(endpoint) as kubelet:
                    response = (await kubelet.prepare(*claims("u1")))["u1"]
                    assert [d.device_name for d in response.devices] == [device]
        async with connect(new.service) as kubelet:
            assert await kubelet.prepare(*claims("u1"))
        assert not old.service.exists()
        assert not old.registration.exists()


async def test_a_stopping_instance_deregisters_first_and_serves_until_the_delay_has_passed(
    kubelet_directory: Path,
) -> None:
    paths, stop = sockets(kubelet_directory, "a1b2c3"), asyncio.Event()

    async def instance() -> None:
        async with plugin.serving(FakeDriver(), paths, health=FakeHealth(), deregistration_delay=5.0):
            await stop.wait()

    stopping = asyncio.create_task(instance())
    await until_async(paths.registration.exists)
    async with connect(paths.service) as kubelet:
        assert await kubelet.prepare(*claims("u0"))  # connected before the delay begins
        stop.set()
        await until_async(lambda: not paths.registration.exists())
        assert await kubelet.prepare(*claims("u1"))
    await stopping
    assert not paths.service.exists()


async def test_the_probe_of_the_registration_socket_notices_what_a_kubelet_would(kubelet_directory: Path) -> None:
    paths, other = sockets(kubelet_directory, "abc123"), sockets(kubelet_directory, "other0")
    async with serving(FakeDriver(), paths):
        assert await registration_problem(paths) == ""
        assert await registration_problem(paths) == ""
        assert "another plugin answers" in await registration_problem(paths._replace(service=other.service))
        moved = paths.service.rename(paths.service.with_suffix(".moved"))
        assert "was removed" in await registration_problem(paths)
        moved.rename(paths.service)
        # The server still listens, but no kubelet that starts now finds it.
        paths.registration.unlink()
        assert "does not answer" in await registration_problem(paths)


async def test_what_the_kubelet_says_of_the_registration_is_kept(kubelet_directory: Path) -> None:
    paths, registration = sockets(kubelet_directory, "abc123"), Registration()
    async with serving(FakeDriver(), paths, registration=registration), connect(paths.registration) as kubelet:
        assert "has not registered" in registration.problem
        await kubelet.notify(registered=False, error="a wrong version")
        assert registration.problem == "the kubelet rejected the registration: a wrong version"
        await kubelet.notify(registered=True)
        assert registration.problem == ""
