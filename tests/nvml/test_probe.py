"""NVML through a stub of its library, in a real child process."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra.api.nvlinknode import FabricState
from imex_dra.hardware.nvml import NvmlHardware, find_library, heard
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import Silent
from imex_dra.sandbox.racks import layout, of_racks
from tests.nvml.stub import (
    CLUSTER,
    COMPLETED,
    HEALTHY,
    IN_PROGRESS,
    NO_CLUSTER,
    NOT_STARTED,
    NOT_SUPPORTED,
    StubGpu,
    StubHost,
)

NONE, PENDING, OK, BROKEN = FabricState.NONE, FabricState.PENDING, FabricState.OK, FabricState.BROKEN
FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"


async def read(host: StubHost, limit: float = 30.0) -> Reading:
    return await NvmlHardware(host.root, limit=limit).read()


def unhealthy(shift: int, value: int, width: int = 0x3) -> StubGpu:
    return StubGpu(mask=HEALTHY & ~(width << shift) | value << shift, summary=2)


@pytest.mark.parametrize(
    ("gpu", "state", "words"),
    [
        (StubGpu(NOT_SUPPORTED), NONE, "does not support"),
        (StubGpu(cluster=NO_CLUSTER, clique=0), NONE, "inside the node only"),
        (StubGpu(NOT_STARTED), PENDING, "has not started"),
        (StubGpu(IN_PROGRESS), PENDING, "is joining"),
        (StubGpu(COMPLETED), OK, ""),
        (StubGpu(COMPLETED, status=999), BROKEN, "failed to join the fabric: Unknown Error"),
        (StubGpu(COMPLETED, status=10), BROKEN, "failed to join the fabric: Timeout"),
        (StubGpu(COMPLETED, status=28), BROKEN, "failed to join the fabric: stub error 28"),
        (StubGpu(state=9), BROKEN, "fabric state 9"),
        (StubGpu(mask=HEALTHY & ~0x3 | 1, summary=3), OK, "bandwidth is degraded"),
        (unhealthy(2, 1), PENDING, "routes are being recovered"),
        (unhealthy(4, 1), BROKEN, "routes are unhealthy"),
        (unhealthy(6, 1), PENDING, "recovers from an access time-out"),
        (unhealthy(8, 2, 0xF), BROKEN, "system GUID"),
        (unhealthy(8, 3, 0xF), BROKEN, "chassis serial"),
        (unhealthy(8, 4, 0xF), BROKEN, "in no NVLink partition"),
        (unhealthy(8, 5, 0xF), BROKEN, "too few NVLinks"),
        (unhealthy(8, 6, 0xF), BROKEN, "firmware"),
        (unhealthy(8, 7, 0xF), BROKEN, "location in the rack"),
        (unhealthy(8, 8, 0xF), BROKEN, "state is invalid"),
        (unhealthy(12, 2), BROKEN, "no NVLink partition is assigned"),
        (StubGpu(mask=HEALTHY & ~0xC000 | 0x8000), OK, "lost its fabric manager"),
        (StubGpu(summary=2), BROKEN, "calls its fabric unhealthy"),
    ],
)
async def test_what_one_gpu_says_is_what_the_node_says(
    host: StubHost, gpu: StubGpu, state: FabricState, words: str
) -> None:
    host.gpus(gpu)
    fabric = (await read(host)).fabric
    assert fabric.state is state
    assert words in fabric.reason


async def test_the_cluster_and_the_clique_make_the_partition(host: StubHost) -> None:
    host.gpus(StubGpu(clique=32766))
    assert (await read(host)).partition == f"{CLUSTER}.32766"


async def test_gpus_that_disagree_break_the_fabric(host: StubHost) -> None:
    host.gpus(StubGpu(clique=1), StubGpu(clique=2))
    fabric = (await read(host)).fabric
    assert fabric.state is BROKEN
    assert f"{CLUSTER}.1, {CLUSTER}.2" in fabric.reason


async def test_one_gpu_that_is_late_makes_all_wait(host: StubHost) -> None:
    host.gpus(StubGpu(), StubGpu(), StubGpu(IN_PROGRESS))
    assert (await read(host)).fabric.state is PENDING


async def test_a_sentence_says_where_in_the_rack_the_gpu_is(host: StubHost) -> None:
    host.gpus(StubGpu(), StubGpu(status=10), also=["place SN1234 4 200"])
    assert "GPU 1 (chassis SN1234, slot 4, tray 200)" in (await read(host)).fabric.reason


async def test_a_gpu_that_nvml_does_not_see_forbids_the_proof(host: StubHost) -> None:
    host.gpus(*[StubGpu(NOT_SUPPORTED)] * 3, on_pci=4)
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert "3 GPUs" in fabric.reason
    assert "4 NVIDIA GPUs" in fabric.reason


async def test_a_driver_that_knows_only_the_second_struct_is_asked_with_that(host: StubHost) -> None:
    host.gpus(StubGpu(summary=2), also=["newest 2"])
    reading = await read(host)
    assert (reading.fabric.state, reading.partition) == (OK, f"{CLUSTER}.7")


async def test_a_library_without_the_call_proves_nothing(tmp_path: Path, old_library: Path) -> None:
    host = StubHost(tmp_path / "old", old_library)
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert FABRIC_CALL in fabric.reason


async def test_no_library_is_a_driver_that_is_not_installed(tmp_path: Path) -> None:
    fabric = (await read(StubHost(tmp_path / "bare", None))).fabric
    assert fabric.state is PENDING
    assert "not installed" in fabric.reason


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("fail nvmlInitWithFlags 9", PENDING, "driver is not loaded"),
        ("fail nvmlInitWithFlags 18", PENDING, "differ in version"),
        ("fail nvmlInitWithFlags 4", PENDING, "rights"),
        ("fail nvmlInitWithFlags 3", BROKEN, "Not Supported"),
        ("fail nvmlDeviceGetCount_v2 999", BROKEN, "nvmlDeviceGetCount"),
        ("fail nvmlDeviceGetHandleByIndex_v2 15", BROKEN, "GPU is lost"),
        ("fail nvmlDeviceGetHandleByIndex_v2 3", BROKEN, "Not Supported"),
        (f"fail {FABRIC_CALL} 3", NONE, "does not support"),
        (f"fail {FABRIC_CALL} 16", BROKEN, "GPU requires restart"),
        ("fail nvmlDeviceGetUUID 3", OK, ""),
        ("fail nvmlDeviceGetPlatformInfo 3", OK, ""),
        ("crash nvmlInitWithFlags", BROKEN, "crashed the process that asked it (SIGSEGV)"),
        (f"crash {FABRIC_CALL}", BROKEN, "crashed the process that asked it (SIGSEGV)"),
    ],
)
async def test_a_call_that_fails(host: StubHost, line: str, state: FabricState, words: str) -> None:
    host.gpus(StubGpu(), StubGpu(), also=[line])
    fabric = (await read(host)).fabric
    assert fabric.state is state
    assert words in fabric.reason


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", FABRIC_CALL])
async def test_a_call_that_hangs_is_given_up(host: StubHost, call: str) -> None:
    host.gpus(StubGpu(), also=[f"hang {call}"])
    fabric = (await read(host, limit=1.5)).fabric
    assert (fabric.state, fabric.reason) == (BROKEN, "NVML does not answer")


async def test_the_driver_s_version_is_known_even_when_nvml_is_silent(host: StubHost) -> None:
    host.gpus(StubGpu(), also=["crash nvmlInitWithFlags"])
    host.write("sys/module/nvidia/version", "580.95.05\n")
    assert (await read(host)).driver_version == "580.95.05"


async def test_a_call_that_hangs_keeps_nobody_else_waiting(host: StubHost) -> None:
    """The kubelet is served by the same loop."""
    host.gpus(StubGpu(), also=["hang nvmlInitWithFlags"])
    reading = asyncio.create_task(read(host, limit=1))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 2  # one that blocks has none


async def test_a_driver_that_answers_again_is_heard(host: StubHost) -> None:
    hardware = NvmlHardware(host.root, limit=1)
    host.gpus(StubGpu(), also=[f"hang {FABRIC_CALL}"])
    assert (await hardware.read()).fabric.state is BROKEN
    host.gpus(StubGpu())
    hardware.limit = 60
    assert (await hardware.read()).fabric.state is OK


async def test_a_reading_that_is_cancelled_leaves_no_child(host: StubHost) -> None:
    host.gpus(StubGpu(), also=["hang nvmlInitWithFlags"])
    reading = asyncio.create_task(read(host))
    while not (found := children()):
        await asyncio.sleep(0.02)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not found & children()


def test_a_probe_that_nobody_waits_for_ends_itself(host: StubHost) -> None:
    host.gpus(StubGpu(), also=["hang nvmlInitWithFlags"])
    command = [sys.executable, "-m", "imex_dra.hardware.probe", str(find_library(host.root)), "0"]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGALRM


async def test_a_node_without_gpus_offers_nothing_and_is_not_even_asked(host: StubHost) -> None:
    host.gpus(on_pci=0, also=["crash nvmlInitWithFlags"])
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert fabric.reason == "no NVIDIA GPU is on the node's PCI bus"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("proc/driver/nvidia/params", "ImexChannelCount: 0\n", "NVreg_ImexChannelCount=0"),
        ("proc/driver/nvidia/params", "ResmanDebugLevel: 0\n", "too old for IMEX channels"),
        ("proc/devices", "Character devices:\n  1 mem\n", "too old for IMEX channels"),
    ],
)
async def test_a_fabric_without_channels_is_broken(host: StubHost, file: str, content: str, words: str) -> None:
    host.write(file, content)
    reading = await read(host)
    assert (reading.fabric.state, reading.partition) == (BROKEN, "")
    assert words in reading.fabric.reason


async def test_a_missing_management_capability_is_mentioned(host: StubHost) -> None:
    shutil.rmtree(host.root / "proc/driver/nvidia/capabilities")
    fabric = (await read(host)).fabric
    assert fabric.state is OK
    assert "fabric-imex-mgmt" in fabric.reason


async def test_a_simulated_node_and_nvml_tell_the_same_of_one_machine(host: StubHost) -> None:
    node = layout(of_racks(1, "gb200-nvl72"))[0]
    cluster, _, clique = node.hardware.partition.partition(".")
    host.gpus(*[StubGpu(cluster=cluster, clique=int(clique))] * node.profile.gpus)
    reading = await read(host)
    assert reading.partition == node.hardware.partition
    assert reading.fabric == node.hardware.fabric


@pytest.mark.parametrize(
    "place", ["usr/lib64", "run/nvidia/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64", "lib"]
)
def test_the_library_is_found_where_drivers_are_installed(tmp_path: Path, place: str) -> None:
    library = tmp_path / place / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert find_library(tmp_path) == library


@pytest.mark.parametrize("said", [b"", b"null", b'{"type": "Told"}', b"not JSON"])
def test_a_probe_that_talks_nonsense_is_no_fault_of_the_driver(said: bytes) -> None:
    answer = heard(1, said, b"Traceback\nModuleNotFoundError: No module named 'pynvml'\n")
    assert isinstance(answer, Silent)
    assert not answer.faulty
    assert "ModuleNotFoundError" in answer.why


def test_a_probe_that_somebody_kills_is_no_fault_of_the_driver() -> None:
    answer = heard(-9, b"", b"")
    assert isinstance(answer, Silent)
    assert not answer.faulty


def children() -> set[str]:
    """The live probes that this process started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split() if _is_probe(pid)}


def _is_probe(pid: str) -> bool:
    try:
        return b"imex_dra.hardware.probe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
