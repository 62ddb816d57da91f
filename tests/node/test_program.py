"""`imex node` as a whole, on a disk that becomes full."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import Fabric, FabricState
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
