"""The check pod of a node: its manifest, and its script on directories that look like nodes."""

import os
import subprocess
from pathlib import Path

import pytest

from imex_dra.base.errors import Unreadable
from imex_dra.diagnose.nodecheck import NodeCheck, Verdict, check_pod, fails, parse_log, pod_name, script


class FakeHost:
    """Healthy; files with what a real node has in them."""

    def __init__(self, root: Path) -> None:
        self.host, self.proc = root / "host", root / "proc"
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.158.01  x\n",
        )
        self.write("proc/driver/nvidia/capabilities/fabric-imex-mgmt", "DeviceFileMinor: 2\n")
        self.write("proc/devices", "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n")
        self.write("proc/1/mounts", "udev /dev devtmpfs rw 0 0\n")
        self.write("proc/1/comm", "systemd\n")
        for program in ("nvidia-imex", "nvidia-imex-ctl"):
            self.write(f"host/usr/bin/{program}", "").chmod(0o755)

    def write(self, path: str, content: str) -> Path:
        file = self.host.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def checks(self) -> list[NodeCheck]:
        environment = os.environ | {"HOST": str(self.host), "PROC": str(self.proc)}
        done = subprocess.run(["sh", "-c", script()], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return parse_log(done.stdout)

    def failed(self) -> list[str]:
        return [check.sentence for check in self.checks() if check.verdict is Verdict.FAILED]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_a_healthy_node_has_no_failed_check(host: FakeHost) -> None:
    checks = host.checks()
    assert {check.verdict for check in checks} == {Verdict.OK}
    assert len(checks) == 9
    assert not fails(checks)


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Kernel Module  570.86.15  x\n",
            "has version 570.86.15",
        ),
        ("proc/driver/nvidia/version", "", "the GPU driver is not loaded"),
        ("proc/devices", "195 nvidia\n", "/proc/devices has no nvidia-caps-imex-channels"),
        ("proc/1/mounts", "none /dev tmpfs rw 0 0\n", "/dev of the host is no devtmpfs"),
        ("proc/1/net/tcp", "   0: 00000000:C350 00000000:0000 0A 0 0\n", "another process listens on port 50000"),
        ("proc/77/comm", "nvidia-imex\n", "another nvidia-imex runs on the host (pid 77)"),
    ],
)
def test_each_cause_is_named_alone(host: FakeHost, path: str, content: str, sentence: str) -> None:
    host.write(path, content)
    (failed,) = host.failed()
    assert sentence in failed


def test_our_own_nvidia_imex_is_no_other_one(host: FakeHost) -> None:
    host.write("proc/77/comm", "nvidia-imex\n")
    host.write("proc/77/cmdline", "nvidia-imex\0-c\0/run/imex-dra/imex/current/config.cfg\0")
    assert host.failed() == []


def test_an_enabled_unit_is_named(host: FakeHost) -> None:
    wants = host.host / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "nvidia-imex.service").symlink_to("/lib/systemd/system/nvidia-imex.service")
    (failed,) = host.failed()
    assert failed.startswith("the systemd unit nvidia-imex is enabled")
    assert "systemctl disable --now nvidia-imex" in failed
    assert "--imex host-managed" in failed


def test_a_missing_program_and_a_missing_capability_are_named(host: FakeHost) -> None:
    (host.host / "usr/bin/nvidia-imex-ctl").unlink()
    (host.proc / "driver/nvidia/capabilities/fabric-imex-mgmt").unlink()
    capability, program = host.failed()
    assert "fabric-imex-mgmt" in capability
    assert program.startswith("nvidia-imex-ctl is missing in the driver root /")


def test_the_driver_root_of_the_gpu_operator_comes_first(host: FakeHost) -> None:
    host.write("host/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", "")
    assert [text for text in host.failed() if "in the driver root /run/nvidia/driver/" in text] == host.failed()
    assert len(host.failed()) == 2


def test_selinux_is_named_as_not_verified(host: FakeHost) -> None:
    host.write("host/sys/fs/selinux/enforce", "1\n")
    assert host.checks()[-1].verdict is Verdict.UNKNOWN


def test_the_pod_runs_on_the_node_and_cannot_change_it() -> None:
    pod = check_pod("r0-n01", "imex-dra", "busybox:1")
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert (spec["nodeName"], spec["hostPID"], spec["restartPolicy"]) == ("r0-n01", True, "Never")
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["privileged"] is True
    assert container["securityContext"]["runAsUser"] == 0, "the image of the driver names another user"
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert container["command"][:2] == ["sh", "-c"]
    assert pod["metadata"]["name"] == pod_name("r0-n01") != pod_name("r0-n02")


def test_a_log_without_its_end_is_an_error() -> None:
    with pytest.raises(Unreadable, match="the last line of its log: sh: not found"):
        parse_log("ok\tfine\nsh: not found\n")
