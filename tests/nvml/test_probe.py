"""NVML, called through a stub of its library in a real child process."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.hardware import probe
from imex_dra.hardware.driverroot import find_library
from imex_dra.hardware.nvml import PROBE, NvmlHardware, parse_probe_output
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import NvmlUnavailable
from imex_sandbox.racks import layout, of_racks
from tests.devicenodes import description, require_mknod
from tests.nvml.stub import (
    CLUSTER_UUID,
    COMPLETED,
    IN_PROGRESS,
    NOT_STARTED,
    NOT_SUPPORTED,
    ZERO_UUID,
    StubGpu,
    StubHost,
)
from tests.waiting import until_async

NONE, PENDING, OK, BROKEN = FabricState.NONE, FabricState.PENDING, FabricState.OK, FabricState.BROKEN
FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"


async def read(host: StubHost, timeout: float = 30.0) -> Reading:
    return await NvmlHardware(host.root, timeout=timeout).read()


@pytest.mark.parametrize(
    ("ours", "number", "theirs"),
    [
        (probe.FabricInfoV2, 2, pynvml.c_nvmlGpuFabricInfo_v2_t),
        (probe.FabricInfoV3, 3, pynvml.c_nvmlGpuFabricInfo_v3_t),
        (probe.PlatformInfoV2, 2, pynvml.c_nvmlPlatformInfo_v2_t),
    ],
)
def test_the_structs_are_those_of_the_bindings_of_nvidia(ours: Any, number: int, theirs: Any) -> None:
    assert probe.version_of(ours, number) == theirs().version
    assert _layout(ours) == _layout(theirs)


def _layout(struct: Any) -> list[tuple[str, int, int]]:
    found = [(name, getattr(struct, name)) for name, *_ in struct._fields_]
    return [(name, field.offset, field.size) for name, field in found]


def test_the_error_codes_are_those_of_the_bindings_of_nvidia() -> None:
    assert probe.LIBRARY_NOT_FOUND == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert probe.FUNCTION_NOT_FOUND == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert probe.ARGUMENT_VERSION_MISMATCH == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize(
    ("gpu", "state", "reason"),
    [
        (StubGpu(NOT_SUPPORTED), NONE, "does not support"),
        (StubGpu(cluster_uuid=ZERO_UUID, clique=0), NONE, "NVLink within the node only"),
        (StubGpu(NOT_STARTED), PENDING, "has not started"),
        (StubGpu(IN_PROGRESS), PENDING, "is registering"),
        (StubGpu(COMPLETED), OK, ""),
        (StubGpu(COMPLETED, status=999), BROKEN, "failed to register with the fabric: Unknown Error"),
        (StubGpu(COMPLETED, status=10), BROKEN, "failed to register with the fabric: Timeout"),
        (StubGpu(COMPLETED, status=28), BROKEN, "failed to register with the fabric: stub error 28"),
        (StubGpu(state=9), BROKEN, "fabric state 9"),
        (StubGpu(health_mask=0x51A9, health_summary=3), OK, "bandwidth is degraded"),
        (StubGpu(health_mask=0x51A6, health_summary=2), PENDING, "routes are being recovered"),
        (StubGpu(health_mask=0x519A, health_summary=2), BROKEN, "routes are unhealthy"),
        (StubGpu(health_mask=0x516A, health_summary=2), PENDING, "recovering from a memory access timeout"),
        (StubGpu(health_mask=0x52AA, health_summary=2), BROKEN, "system GUID"),
        (StubGpu(health_mask=0x53AA, health_summary=2), BROKEN, "chassis serial"),
        (StubGpu(health_mask=0x54AA, health_summary=2), BROKEN, "not in an NVLink partition"),
        (StubGpu(health_mask=0x55AA, health_summary=2), BROKEN, "too few NVLinks"),
        (StubGpu(health_mask=0x56AA, health_summary=2), BROKEN, "firmware"),
        (StubGpu(health_mask=0x57AA, health_summary=2), BROKEN, "location in the rack"),
        (StubGpu(health_mask=0x58AA, health_summary=2), BROKEN, "state is invalid"),
        (StubGpu(health_mask=0x61AA, health_summary=2), BROKEN, "no NVLink partition is assigned"),
        (StubGpu(health_mask=0x91AA), OK, "disconnected from the global fabric manager"),
        (StubGpu(health_summary=2), BROKEN, "fabric health as unhealthy"),
    ],
)
async def test_the_state_of_its_only_gpu_is_the_state_of_the_node(
    host: StubHost, gpu: StubGpu, state: FabricState, reason: str
) -> None:
    host.gpus(gpu)
    fabric = (await read(host)).fabric
    assert fabric.state is state
    assert reason in fabric.reason
    assert bool(fabric.reason) == bool(reason)


async def test_the_partition_is_cluster_uuid_and_clique_id(host: StubHost) -> None:
    host.gpus(StubGpu(clique=32766))
    assert (await read(host)).partition == f"{CLUSTER_UUID}.32766"


async def test_gpus_in_different_partitions_break_the_fabric(host: StubHost) -> None:
    host.gpus(StubGpu(clique=1), StubGpu(clique=2))
    fabric = (await read(host)).fabric
    assert fabric.state is BROKEN
    assert f"{CLUSTER_UUID}.1, {CLUSTER_UUID}.2" in fabric.reason


async def test_one_gpu_that_is_still_registering_makes_the_node_pending(host: StubHost) -> None:
    host.gpus(StubGpu(), StubGpu(), StubGpu(IN_PROGRESS))
    assert (await read(host)).fabric.state is PENDING


async def test_the_reason_says_where_in_the_rack_the_gpu_is(host: StubHost) -> None:
    host.gpus(StubGpu(), StubGpu(status=10), extra=["platform SN1234 4 200"])
    assert "GPU 1 (chassis SN1234, slot 4, tray 200)" in (await read(host)).fabric.reason


async def test_each_gpu_is_reported_with_its_own_state(host: StubHost) -> None:
    host.gpus(StubGpu(), StubGpu(IN_PROGRESS), StubGpu(status=10), extra=["name NVIDIA GB200"])
    reading = await read(host)
    assert (reading.product, reading.gpu_count) == ("NVIDIA GB200", 3)
    assert [(gpu.index, gpu.state) for gpu in reading.gpus] == [(0, OK), (1, PENDING), (2, BROKEN)]
    assert reading.gpus[2].reason == "GPU 2 failed to register with the fabric: Timeout"


async def test_a_gpu_that_nvml_does_not_list_is_mentioned_although_the_fabric_is_ok(host: StubHost) -> None:
    host.gpus(*[StubGpu()] * 3, on_pci=4)
    reading = await read(host)
    assert (reading.fabric.state, reading.gpu_count, len(reading.gpus)) == (OK, 4, 3)
    assert "NVML lists 3 GPUs, but the PCI bus has 4" in reading.fabric.reason


async def test_none_is_not_reported_while_nvml_lists_fewer_gpus_than_the_pci_bus(host: StubHost) -> None:
    host.gpus(*[StubGpu(NOT_SUPPORTED)] * 3, on_pci=4)
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert "3 GPUs" in fabric.reason
    assert "4 NVIDIA GPUs" in fabric.reason


async def test_a_driver_that_supports_only_version_2_of_the_struct_is_called_with_it(host: StubHost) -> None:
    host.gpus(StubGpu(health_summary=2), extra=["newest 2"])
    reading = await read(host)
    assert (reading.fabric.state, reading.partition) == (OK, f"{CLUSTER_UUID}.7")


async def test_a_library_without_the_fabric_call_is_pending(tmp_path: Path, old_library: Path) -> None:
    host = StubHost(tmp_path / "old", old_library)
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert FABRIC_CALL in fabric.reason


async def test_a_missing_library_means_that_the_driver_is_not_installed(tmp_path: Path) -> None:
    fabric = (await read(StubHost(tmp_path / "bare", None))).fabric
    assert fabric.state is PENDING
    assert "not installed" in fabric.reason


@pytest.mark.parametrize(
    ("line", "state", "reason"),
    [
        ("fail nvmlInitWithFlags 9", PENDING, "driver is not loaded"),
        ("fail nvmlInitWithFlags 18", PENDING, "differ in version"),
        ("fail nvmlInitWithFlags 4", PENDING, "denies permission"),
        ("fail nvmlInitWithFlags 3", BROKEN, "Not Supported"),
        ("fail nvmlDeviceGetCount_v2 999", BROKEN, "nvmlDeviceGetCount"),
        ("fail nvmlDeviceGetHandleByIndex_v2 15", BROKEN, "GPU is lost"),
        ("fail nvmlDeviceGetHandleByIndex_v2 3", BROKEN, "Not Supported"),
        (f"fail {FABRIC_CALL} 3", NONE, "does not support"),
        (f"fail {FABRIC_CALL} 16", BROKEN, "GPU requires reset"),
        ("fail nvmlDeviceGetPlatformInfo 3", OK, ""),
        ("crash nvmlInitWithFlags", BROKEN, "crashed the process that called it (SIGSEGV)"),
        (f"crash {FABRIC_CALL}", BROKEN, "crashed the process that called it (SIGSEGV)"),
    ],
)
async def test_a_failed_call_decides_the_state(host: StubHost, line: str, state: FabricState, reason: str) -> None:
    host.gpus(StubGpu(), StubGpu(), extra=["platform SN1234 4 3", line])
    fabric = (await read(host)).fabric
    assert fabric.state is state
    assert reason in fabric.reason
    assert bool(fabric.reason) == bool(reason)


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", FABRIC_CALL])
async def test_a_call_that_hangs_is_aborted(host: StubHost, call: str) -> None:
    host.gpus(StubGpu(), extra=[f"hang {call}"])
    fabric = (await read(host, timeout=1.5)).fabric
    assert fabric.state is BROKEN
    assert fabric.reason.startswith("NVML does not answer: the GPU driver hangs")


async def test_the_driver_version_is_known_even_when_nvml_is_unavailable(host: StubHost) -> None:
    host.gpus(StubGpu(), extra=["crash nvmlInitWithFlags"])
    host.write("sys/module/nvidia/version", "580.95.05\n")
    assert (await read(host)).driver_version == "580.95.05"


async def test_a_call_that_hangs_does_not_block_the_event_loop(host: StubHost) -> None:
    """The kubelet is served by the same loop."""
    host.gpus(StubGpu(), extra=["hang nvmlInitWithFlags"])
    reading = asyncio.create_task(read(host, timeout=1))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 2  # a blocked loop has none


async def test_a_driver_that_answers_again_is_read_again(host: StubHost) -> None:
    hardware = NvmlHardware(host.root, timeout=1)
    host.gpus(StubGpu(), extra=[f"hang {FABRIC_CALL}"])
    assert (await hardware.read()).fabric.state is BROKEN
    host.gpus(StubGpu())
    hardware.timeout = 60
    assert (await hardware.read()).fabric.state is OK


async def test_a_cancelled_reading_leaves_no_child(host: StubHost) -> None:
    host.gpus(StubGpu(), extra=["hang nvmlInitWithFlags"])
    reading = asyncio.create_task(read(host))
    started = await until_async(probes)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not started & probes()


def test_a_probe_whose_parent_is_gone_ends_itself(host: StubHost) -> None:
    host.gpus(StubGpu(), extra=["hang nvmlInitWithFlags"])
    command = [sys.executable, str(PROBE), str(find_library(host.root)), "0"]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGALRM


async def test_nvml_is_not_called_on_a_node_without_gpus(host: StubHost) -> None:
    host.gpus(on_pci=0, extra=["crash nvmlInitWithFlags"])
    fabric = (await read(host)).fabric
    assert fabric.state is PENDING
    assert fabric.reason == "the node's PCI bus has no NVIDIA GPU"


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("proc/driver/nvidia/params", "ImexChannelCount: 0\n", "NVreg_ImexChannelCount=0"),
        ("proc/driver/nvidia/params", "ImexChannelCount: 1\n", "its only channel, 0, is never assigned"),
        ("proc/driver/nvidia/params", "ResmanDebugLevel: 0\n", "too old for IMEX channels"),
        ("proc/devices", "Character devices:\n  1 mem\n", "too old for IMEX channels"),
    ],
)
async def test_a_fabric_without_channels_is_broken(host: StubHost, file: str, content: str, reason: str) -> None:
    host.write(file, content)
    reading = await read(host)
    assert (reading.fabric.state, reading.partition) == (BROKEN, "")
    assert reason in reading.fabric.reason


async def test_a_missing_management_capability_is_reported_and_the_fabric_stays_ok(host: StubHost) -> None:
    shutil.rmtree(host.root / "proc/driver/nvidia/capabilities")
    reading = await read(host)
    assert reading.fabric == Fabric(OK)
    assert "fabric-imex-mgmt" in reading.imex_problem


async def test_a_reading_creates_the_node_of_the_management_capability(host: StubHost) -> None:
    require_mknod(host.root / "dev")
    assert (await read(host)).imex_problem == ""
    assert description(host.root / "dev/nvidia-caps/nvidia-cap3") == (233, 3, 0o400)


async def test_a_reading_names_the_driver_root_and_what_is_missing_in_it(host: StubHost) -> None:
    reading = await read(host)
    assert reading.driver_root == "/"
    (host.root / "usr/bin/nvidia-imex").unlink()
    assert (await read(host)).imex_problem.startswith("the GPU driver in / has no nvidia-imex: install")


async def test_a_node_without_a_fabric_needs_no_management_capability(host: StubHost) -> None:
    host.gpus(StubGpu(NOT_SUPPORTED))
    shutil.rmtree(host.root / "proc/driver/nvidia/capabilities")
    assert (await read(host)).imex_problem == ""


async def test_nvml_and_a_simulated_node_report_the_same_for_the_same_hardware(host: StubHost) -> None:
    node = layout(of_racks(1, "gb200-nvl72"))[0]
    cluster_uuid, _, clique = node.hardware.partition.partition(".")
    host.gpus(*[StubGpu(cluster_uuid=cluster_uuid, clique=int(clique))] * node.profile.gpus)
    reading = await read(host)
    assert reading.partition == node.hardware.partition
    assert reading.fabric == node.hardware.fabric


@pytest.mark.parametrize(
    "directory", ["usr/lib64", "run/nvidia/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64", "lib"]
)
def test_the_library_is_found_where_drivers_are_installed(tmp_path: Path, directory: str) -> None:
    library = tmp_path / directory / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert find_library(tmp_path) == library


@pytest.mark.parametrize("stdout", [b"", b"null", b'{"type": "NvmlAnswer"}', b"not JSON"])
def test_unparsable_output_of_the_probe_is_no_fault_of_the_driver(stdout: bytes) -> None:
    result = parse_probe_output(1, stdout, b"Traceback\nModuleNotFoundError: No module named 'pynvml'\n")
    assert result == NvmlUnavailable(
        "the NVML probe failed with exit code 1: ModuleNotFoundError: No module named 'pynvml'", driver_fault=False
    )


def test_a_probe_that_was_killed_is_no_fault_of_the_driver() -> None:
    assert parse_probe_output(-9, b"", b"") == NvmlUnavailable(
        "the NVML probe was killed (SIGKILL)", driver_fault=False
    )


def probes() -> set[str]:
    """PIDs of the live probes that this process started."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in _children(task) if _is_probe(pid)}


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # the thread has ended
        return []


def _is_probe(pid: str) -> bool:
    try:
        return bytes(PROBE) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
