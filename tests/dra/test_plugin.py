"""The driver as the kubelet sees it: real gRPC over real unix sockets."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from imex_dra.base.errors import Misconfigured, NotYet, Rejected
from imex_dra.dra import plugin
from imex_dra.dra.plugin import ClaimId, PreparedDevice, sockets
from tests.dra.kubelet import dialled

serving = partial(plugin.serving, linger=0.0)


class FakeDriver:
    """Fails for claims that it is told to fail for, and remembers what it was asked."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.asked: list[tuple[str, ClaimId]] = []
        self.failures: dict[str, Exception] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        await self._serve("prepare", claim)
        return (PreparedDevice("channel", "n1", f"channel-0{self.name}", (f"imex-dra.io/channel={claim.uid}",)),)

    async def unprepare(self, claim: ClaimId) -> None:
        await self._serve("unprepare", claim)

    async def _serve(self, verb: str, claim: ClaimId) -> None:
        self.asked.append((verb, claim))
        if claim.uid in self.hold:
            try:
                await self.hold[claim.uid].wait()
            except asyncio.CancelledError:
                self.cancelled.append(claim.uid)
                raise
        if claim.uid in self.failures:
            raise self.failures[claim.uid]


@pytest.fixture
def kubelet_directory() -> Iterator[Path]:
    """Short, as a unix socket's path must be."""
    path = Path(tempfile.mkdtemp(prefix="k-"))
    yield path
    shutil.rmtree(path)


def claims(*uids: str) -> list[ClaimId]:
    return [ClaimId("team", f"claim-{uid}", uid) for uid in uids]


async def test_the_registration_socket_says_who_serves_what_and_where(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), dialled(paths.registration) as kubelet:
        info = await kubelet.info()
        assert (info.type, info.name) == ("DRAPlugin", "compute-domain.nvidia.com")
        assert list(info.supported_versions) == ["v1.DRAPlugin"]
        assert Path(info.endpoint) == paths.service
        assert Path(info.endpoint).is_socket()
        await kubelet.notify(registered=True)
        await kubelet.notify(registered=False, error="no")


def test_the_sockets_lie_where_the_kubelet_looks(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    assert paths.registration.parent == kubelet_directory / "plugins_registry"
    assert paths.service.parent == kubelet_directory / "plugins" / "compute-domain.nvidia.com"
    assert paths.registration.name.endswith("-reg.sock")


async def test_a_prepared_claim_comes_back_with_its_devices(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    async with serving(driver, paths), dialled(paths.service) as kubelet:
        answers = await kubelet.prepare(*claims("u1"))
        (device,) = answers["u1"].devices
        assert list(device.request_names) == ["channel"]
        assert (device.pool_name, device.device_name) == ("n1", "channel-0")
        assert list(device.cdi_device_ids) == ["imex-dra.io/channel=u1"]
        assert answers["u1"].error == ""
        assert driver.asked == [("prepare", ClaimId("team", "claim-u1", "u1"))]


async def test_every_claim_has_its_own_answer_and_one_failure_harms_no_other(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u2": NotYet("the daemon of node n1 is not READY"), "u4": Rejected("no such ComputeDomain")}
    async with serving(driver, paths), dialled(paths.service) as kubelet:
        prepared = await kubelet.prepare(*claims("u1", "u2", "u3", "u4"))
        unprepared = await kubelet.unprepare(*claims("u1", "u2", "u3"))
    assert {uid: (len(answer.devices), answer.error) for uid, answer in prepared.items()} == {
        "u1": (1, ""),
        "u2": (0, "the daemon of node n1 is not READY"),
        "u3": (1, ""),
        "u4": (0, "no such ComputeDomain"),
    }
    assert unprepared == {"u1": "", "u2": "the daemon of node n1 is not READY", "u3": ""}


async def test_no_claims_no_answers(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), dialled(paths.service) as kubelet:
        assert await kubelet.prepare() == {}
        assert await kubelet.unprepare() == {}


async def test_the_claims_of_a_call_do_not_wait_for_each_other(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.hold = {"u1": asyncio.Event()}
    async with serving(driver, paths), dialled(paths.service) as kubelet:
        call = asyncio.create_task(kubelet.prepare(*claims("u1", "u2")))
        await kubelet.unprepare(*claims("u3"))
        async with asyncio.timeout(20):
            while len(driver.asked) < 3:
                await asyncio.sleep(0.01)
        driver.hold["u1"].set()
        assert (await call).keys() == {"u1", "u2"}


async def test_an_unexpected_error_becomes_words(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u1": OSError(28, "No space left on device"), "u2": KeyError("nobody")}
    async with serving(driver, paths), dialled(paths.service) as kubelet:
        prepared = await kubelet.prepare(*claims("u1", "u2"))
        unprepared = await kubelet.unprepare(*claims("u2"))
    assert prepared["u1"].error == (
        "claim team/claim-u1: unexpected OSError: [Errno 28] No space left on device; see the log of imex node on"
        " this node"
    )
    assert unprepared["u2"] == prepared["u2"].error
    assert "unexpected KeyError: 'nobody'" in prepared["u2"].error


async def test_an_error_without_words_is_still_an_error(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.failures = {"u1": NotYet()}
    async with serving(driver, paths), dialled(paths.service) as kubelet:
        answer = (await kubelet.prepare(*claims("u1")))["u1"]
        assert answer.error


async def test_a_kubelet_that_hangs_up_cancels_the_work(kubelet_directory: Path) -> None:
    paths, driver = sockets(kubelet_directory, "a1b2c3"), FakeDriver()
    driver.hold = {"u1": asyncio.Event()}
    async with serving(driver, paths):
        async with dialled(paths.service) as kubelet:
            call = asyncio.create_task(kubelet.prepare(*claims("u1")))
            async with asyncio.timeout(20):
                while not driver.asked:
                    await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait({call})
        async with asyncio.timeout(20):
            while not driver.cancelled:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("authority", ["localhost", "%2Fvar%2Flib%2Fkubelet%2Fdra.sock", "unix:@", "a b", "_"])
async def test_whatever_authority_the_client_makes_up_is_served(kubelet_directory: Path, authority: str) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), dialled(paths.service, authority=authority) as kubelet:
        assert (await kubelet.prepare(*claims("u1"))).keys() == {"u1"}


async def test_an_unknown_service_is_refused_and_harms_nobody(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    async with serving(FakeDriver(), paths), aio.insecure_channel(f"unix:{paths.service}") as channel:
        call: Any = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources")
        with pytest.raises(aio.AioRpcError) as refused:
            await call(b"", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        async with dialled(paths.service) as kubelet:
            assert (await kubelet.prepare(*claims("u1"))).keys() == {"u1"}


@pytest.mark.parametrize("place", ["x" * 90, "ü" * 45], ids=["in characters", "in bytes"])
def test_a_path_too_long_for_a_socket_is_refused_with_the_limit(place: str) -> None:
    with pytest.raises(Misconfigured, match=r"longer than a unix socket path may be \(107 bytes\)"):
        sockets(Path("/tmp") / place, "a1b2c3")


async def test_the_longest_path_that_is_allowed_works(kubelet_directory: Path) -> None:
    rest = 107 - len(str(sockets(kubelet_directory, "").registration))
    paths = sockets(kubelet_directory, "x" * rest)
    assert len(str(paths.registration)) == 107
    async with serving(FakeDriver(), paths), dialled(paths.registration) as kubelet:
        assert Path((await kubelet.info()).endpoint) == paths.service


async def test_at_the_end_no_socket_is_left_and_a_dead_ones_is_taken_over(kubelet_directory: Path) -> None:
    paths = sockets(kubelet_directory, "a1b2c3")
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("left by one that was killed")
    async with serving(FakeDriver(), paths), dialled(paths.service) as kubelet:
        assert await kubelet.prepare(*claims("u1"))
    assert [path for path in kubelet_directory.rglob("*") if not path.is_dir()] == []


async def test_two_instances_serve_side_by_side_and_one_ends_without_the_other(kubelet_directory: Path) -> None:
    old, new = sockets(kubelet_directory, "aaaaaa"), sockets(kubelet_directory, "bbbbbb")
    async with serving(FakeDriver("-new"), new):
        async with serving(FakeDriver("-old"), old):
            for paths, device in ((old, "channel-0-old"), (new, "channel-0-new")):
                async with dialled(paths.registration) as kubelet:
                    endpoint = Path((await kubelet.info()).endpoint)
                async with dialled(endpoint) as kubelet:
                    answer = (await kubelet.prepare(*claims("u1")))["u1"]
                    assert [d.device_name for d in answer.devices] == [device]
        async with dialled(new.service) as kubelet:
            assert await kubelet.prepare(*claims("u1"))
        assert not old.service.exists()
        assert not old.registration.exists()


async def test_an_instance_that_ends_is_unregistered_first_and_serves_for_a_moment_longer(
    kubelet_directory: Path,
) -> None:
    paths, stop = sockets(kubelet_directory, "a1b2c3"), asyncio.Event()

    async def instance() -> None:
        async with plugin.serving(FakeDriver(), paths, linger=2.0):
            await stop.wait()

    async with asyncio.timeout(20):
        ending = asyncio.create_task(instance())
        while not paths.registration.exists():
            await asyncio.sleep(0.01)
        async with dialled(paths.service) as kubelet:
            stop.set()
            while paths.registration.exists():
                await asyncio.sleep(0.01)
            assert await kubelet.prepare(*claims("u1"))
        await ending
    assert not paths.service.exists()
