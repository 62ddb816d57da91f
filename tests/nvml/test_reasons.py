"""What keeps nvidia-imex from running on a real node, from the files of the host to what a user reads.

A prepare error is shown in an event of the pod (tests/driver/test_prepare_failures.py), the condition by `kubectl
describe nvlinknode`. Reasons that nvidia-imex itself gives are in tests/daemon, those of the controller, such as
VersionSkew and ChannelSkew, in tests/controller.
"""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import READY, FabricState, ImexState, NVLinkNodeStatus
from imex_dra.daemon.state import DaemonState
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.kube.conditions import find_condition
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Obstacle, Snapshot, grant_or_obstacle, partition_of
from imex_dra.node.nodestatus import node_status
from tests.devicenodes import require_mknod
from tests.node.snapshots import HEALTHY, NODE, assignment, member, partition
from tests.node.test_grant import request
from tests.nvml.stub import CAPABILITY, StubGpu, StubHost

CAPABILITY_FILE = "proc/driver/nvidia/capabilities/fabric-imex-mgmt"
CONTAINER = "4f" * 32

Breaking = Callable[[StubHost], object]


def without(path: str) -> Breaking:
    return lambda host: (host.root / path).unlink()


def with_file(path: str, content: str) -> Breaking:
    return lambda host: host.write(path, content)


def with_process(pid: int, comm: str, cgroup: str) -> Breaking:
    def start(host: StubHost) -> None:
        host.write(f"proc/{pid}/comm", f"{comm}\n")
        host.write(f"proc/{pid}/cmdline", f"/usr/bin/{comm}\0")
        host.write(f"proc/{pid}/cgroup", cgroup)

    return start


def with_socket(host: StubHost) -> None:
    """Port 50000, of process 31."""
    with_process(31, "chat", "0::/user.slice\n")(host)
    host.write("proc/1/net/tcp", "  sl\n0: 0100007F:C350 00000000:0000 0A 0:0 0:0 0 0 0 1002 1\n")
    (host.root / "proc/31/fd").mkdir()
    (host.root / "proc/31/fd/3").symlink_to("socket:[1002]")


def with_old_driver(host: StubHost) -> None:
    host.gpus(StubGpu())
    script = host.root / "usr/lib64/nvml.script"
    script.write_text(script.read_text().replace("driver 580.95.05", "driver 570.133.20"))


async def snapshot_of(host: StubHost, *, host_managed: bool = False) -> Snapshot:
    """Of a member whose IMEX daemon does not run."""
    reading = await NvmlHardware(host.root, host_managed=host_managed).read()
    name = partition_of(reading, HEALTHY.partition_id)
    return structs.replace(
        HEALTHY,
        reading=reading,
        partition_id=name,
        watched_partition=partition(member(), channels=(assignment(),), name=name),
        daemon=DaemonState(ImexState.UNAVAILABLE, problem="nvidia-imex ended with exit code 1"),
    )


def condition_of(snapshot: Snapshot) -> str:
    status = node_status(snapshot, Checkpoint(), NVLinkNodeStatus(), datetime.now(UTC))
    ready = find_condition(status.conditions, READY)
    assert ready is not None
    assert ready.status == "False"
    return ready.message


def prepare_error_of(snapshot: Snapshot) -> str:
    obstacle = grant_or_obstacle(snapshot, request())
    assert isinstance(obstacle, Obstacle)
    return obstacle.explanation.message()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (without("usr/bin/nvidia-imex"), "in / has no nvidia-imex: install the package nvidia-imex"),
        (without("usr/bin/nvidia-imex-ctl"), "in / has no nvidia-imex-ctl: install the package nvidia-imex"),
        (with_old_driver, "the GPU driver 570.133.20 is older than 570.158.01"),
        (
            with_process(812, "nvidia-imex", "0::/system.slice/nvidia-imex.service\n"),
            "(pid 812 of the systemd unit nvidia-imex.service), and the GPU driver has only one IMEX session: run"
            " systemctl disable --now nvidia-imex.service",
        ),
        (
            with_process(90, "nvidia-imex", f"0::/kubepods.slice/cri-containerd-{CONTAINER}.scope\n"),
            "(pid 90 in container 4f4f4f4f4f4f)",
        ),
        (with_socket, "chat (pid 31) has port 50000 of the host, which nvidia-imex needs: stop it"),
        (without(CAPABILITY_FILE), "no fabric-imex-mgmt capability"),
        (with_file(CAPABILITY_FILE, "unknown\n"), "has no DeviceFileMinor or no DeviceFileMode"),
        (
            with_file(CAPABILITY_FILE, CAPABILITY.replace("Modify: 1", "Modify: 0")),
            "NVreg_ModifyDeviceFiles=0, so imex node does not create it: run mknod -m 0400"
            " /dev/nvidia-caps/nvidia-cap3 c 233 3",
        ),
        (lambda host: shutil.rmtree(host.root / "dev"), "CAP_MKNOD"),
    ],
    ids=[
        *("missing program", "missing ctl", "old driver", "unit of the host", "container", "port"),
        *("no capability", "unknown capability", "node of the administrator", "node cannot be created"),
    ],
)
async def test_a_reason_is_in_the_prepare_error_and_in_the_condition(
    host: StubHost, broken: Breaking, reason: str
) -> None:
    require_mknod(host.root / "dev")
    broken(host)
    snapshot = await snapshot_of(host)
    assert snapshot.reading.fabric.state is FabricState.OK, "it concerns nvidia-imex only"
    for message in (condition_of(snapshot), prepare_error_of(snapshot)):
        assert message.startswith(f"the IMEX daemon of node {NODE} is UNAVAILABLE, not READY: ")
        assert reason in message


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (without("usr/bin/nvidia-imex-ctl"), "there is no nvidia-imex-ctl in /: install"),
        (
            lambda host: None,
            "no nvidia-imex runs on the host, and imex node --imex host-managed does not",
        ),
    ],
    ids=["missing ctl", "not running"],
)
async def test_the_same_if_the_host_manages_nvidia_imex(host: StubHost, broken: Breaking, reason: str) -> None:
    broken(host)
    snapshot = await snapshot_of(host, host_managed=True)
    assert reason in condition_of(snapshot)
    assert reason in prepare_error_of(snapshot)


async def test_without_a_reason_of_the_node_that_of_the_process_is_given(host: StubHost) -> None:
    require_mknod(host.root / "dev")
    snapshot = await snapshot_of(host)
    assert "not READY: nvidia-imex ended with exit code 1" in condition_of(snapshot)
    assert "not READY: nvidia-imex ended with exit code 1" in prepare_error_of(snapshot)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("ImexChannelCount: 0\n", "NVreg_ImexChannelCount=0, which disables IMEX channels"),
        ("ImexChannelCount: 1\n", "its only channel, 0, is never assigned"),
    ],
)
async def test_a_driver_without_channels_is_a_broken_fabric(host: StubHost, content: str, reason: str) -> None:
    host.write("proc/driver/nvidia/params", content)
    snapshot = await snapshot_of(host)
    assert reason in condition_of(snapshot)
    assert reason in prepare_error_of(snapshot)
