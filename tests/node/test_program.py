"""`imex node` as a whole: on a disk that becomes full, and what its probes and metrics say."""

import asyncio
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.telemetry import Telemetry
from imex_dra.imex.ctl import ImexCtl
from imex_dra.node.program import run
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedHardware
from tests.dra.kubeletclient import connect
from tests.node.prepare_fixture import ALLOCATION_RESULT, PrepareFixture
from tests.node.publishing_node import PublishingNode, running
from tests.node.tmpfs import mounted_tmpfs
from tests.waiting import until_async

pytestmark = pytest.mark.kube


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because it holds unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="imex-"))
    yield path
    shutil.rmtree(path)


async def test_a_full_disk_fails_prepares_but_neither_unprepares_nor_the_program(
    fixture: PrepareFixture, publishing_node: PublishingNode, directory: Path
) -> None:
    """The node has no fabric, so that nothing but the disk can be in the way."""
    root = NodeRoot(directory / "root")
    root.make(HardwareFile(Fabric(FabricState.NONE), boot_id="boot-1"), address="10.0.0.1")
    domain = await fixture.create_domain()
    here = ({**ALLOCATION_RESULT, "pool": publishing_node.name},)
    first, second = [await fixture.create_claim(domain.metadata.uid, results=here) for _ in range(2)]
    with mounted_tmpfs(directory / "disk") as tmpfs:
        program = run(
            fixture.admin,
            SimulatedHardware(root.path),
            node=publishing_node.name,
            address="10.0.0.1",
            kubelet=tmpfs.path / "k",
            cdi=tmpfs.path / "cdi",
            imex_directory=directory / "imex",
            ctl=ImexCtl(["/no/such/nvidia-imex-ctl"]),
            sweep_period=0.05,
        )
        async with running(program):
            plugin = tmpfs.path / "k/plugins" / DRIVER
            await until_async(lambda: list(plugin.glob("dra-*.sock")))
            (socket,) = plugin.glob("dra-*.sock")
            async with connect(socket) as kubelet:
                assert (await kubelet.prepare(first))[first.uid].error == ""
                tmpfs.fill()
                assert "No space left on device" in (await kubelet.prepare(second))[second.uid].error
                assert await kubelet.unprepare(first) == {first.uid: ""}
                assert list((tmpfs.path / "cdi").glob("*.json")) == []
                tmpfs.free()
                assert (await kubelet.prepare(second))[second.uid].error == ""


async def test_probes_and_metrics_of_a_program_that_serves(
    fixture: PrepareFixture, publishing_node: PublishingNode, directory: Path
) -> None:
    root, telemetry = NodeRoot(directory / "root"), Telemetry(node=publishing_node.name)
    root.make(HardwareFile(Fabric(FabricState.NONE), boot_id="boot-1"), address="10.0.0.1")
    domain = await fixture.create_domain()
    here = ({**ALLOCATION_RESULT, "pool": publishing_node.name},)
    claim = await fixture.create_claim(domain.metadata.uid, results=here)
    missing = claim._replace(name="no-such-claim", uid="no-such-uid")

    def request(path: str) -> tuple[int, str]:
        assert telemetry.server.address is not None
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{telemetry.server.address[1]}{path}", timeout=60
            ) as found:
                return found.status, found.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def get(path: str) -> tuple[int, str]:
        return await asyncio.to_thread(request, path)

    program = run(
        fixture.admin,
        SimulatedHardware(root.path),
        node=publishing_node.name,
        address="10.0.0.1",
        kubelet=directory / "k",
        cdi=directory / "cdi",
        imex_directory=directory / "imex",
        ctl=ImexCtl(["/no/such/nvidia-imex-ctl"]),
        telemetry=telemetry,
    )
    async with telemetry.server.listening("127.0.0.1", 0):
        assert await get("/livez") == (200, "ok\n"), "before it serves, there is nothing that a restart could mend"
        async with running(program):
            registry = directory / "k/plugins_registry"
            await until_async(lambda: list(registry.glob("*.sock")))
            (registration,) = registry.glob("*.sock")
            (service,) = (directory / "k/plugins" / DRIVER).glob("dra-*.sock")

            async def hardware_was_read() -> bool:
                return "[+]hardware ok" in (await get("/readyz"))[1]

            await until_async(hardware_was_read)
            assert await get("/readyz") == (
                503,
                "[+]registration-socket ok\n[-]kubelet: the kubelet has not registered the plugin yet\n"
                "[+]hardware ok\nfailed\n",
            )
            async with connect(registration) as kubelet:
                await kubelet.notify(registered=True)
            assert (await get("/readyz"))[0] == 200
            async with connect(service) as kubelet:
                assert (await kubelet.prepare(claim))[claim.uid].error == ""
                assert (await kubelet.prepare(missing))[missing.uid].error != ""
                assert await kubelet.unprepare(claim) == {claim.uid: ""}
            text = (await get("/metrics"))[1]
            for line in (
                'imex_dra_prepare_seconds_count{node="NAME",result="ok"} 1',
                'imex_dra_prepare_seconds_count{node="NAME",result="terminal"} 1',
                'imex_dra_prepare_errors_total{node="NAME",reason="NoSuchClaim"} 1',
                'imex_dra_unprepare_seconds_count{node="NAME",result="ok"} 1',
                'imex_dra_registration_status{node="NAME"} 1',
                'imex_dra_fabric_state{node="NAME",state="none"} 1',
            ):
                assert line.replace("NAME", publishing_node.name) in text.splitlines()
            registration.unlink()
            status, reason = await get("/livez")
            assert status == 503
            assert "the registration socket does not answer" in reason
