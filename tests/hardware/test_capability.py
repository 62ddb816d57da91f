"""The device node of the capability fabric-imex-mgmt: created, corrected, or a reason that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.capability import CapabilityNode, ensure_capability_node, required_node
from tests.devicenodes import description, require_mknod

CAPABILITY = "DeviceFileMinor: 512\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
DEVICES = (
    "Character devices:\n  1 mem\n233 nvidia-caps\n234 nvidia-caps-imex-channels\n\nBlock devices:\n  7 loop\n"
)
RIGHT = (233, 512, 0o400)
COMMAND = "mknod -m 0400 /dev/nvidia-caps/nvidia-cap512 c 233 512"


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = root / "dev/nvidia-caps/nvidia-cap512"
        self.capability = root / "proc/driver/nvidia/capabilities/fabric-imex-mgmt"
        self.devices = root / "proc/devices"
        self.capability.parent.mkdir(parents=True)
        self.capability.write_text(CAPABILITY)
        self.devices.write_text(DEVICES)
        (root / "dev").mkdir(exist_ok=True)

    def ensure(self) -> str:
        return ensure_capability_node(self.root)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    require_mknod(tmp_path / "dev")
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (CAPABILITY, CapabilityNode(233, 512, 0o400, may_be_changed=True)),
        ("DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 0\n", CapabilityNode(233, 3, 0o444, False)),
        ("DeviceFileMinor: 3\nDeviceFileMode: 292\n", CapabilityNode(233, 3, 0o444, True)),
    ],
    ids=["as documented", "device files of the administrator", "without the permission to modify"],
)
def test_the_driver_says_which_node_it_requires(text: str, node: CapabilityNode) -> None:
    assert required_node(text, 233) == node


@pytest.mark.parametrize("text", ["", "DeviceFileMinor: x\nDeviceFileMode: 256\n", "DeviceFileMinor: 3\n"])
def test_a_capability_without_numbers_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(Misconfigured, match="fabric-imex-mgmt has no DeviceFileMinor or no DeviceFileMode"):
        required_node(text, 233)


def test_a_missing_node_is_created_with_its_directory(host: Host) -> None:
    assert host.ensure() == ""
    assert description(host.node) == RIGHT
    assert host.node.parent.stat().st_mode & 0o777 == 0o755


def test_a_right_node_is_left_alone(host: Host) -> None:
    host.ensure()
    before = host.node.lstat()
    assert host.ensure() == ""
    assert host.node.lstat() == before


def test_after_a_driver_reload_the_node_has_the_new_major_and_minor(host: Host) -> None:
    host.ensure()
    host.devices.write_text(DEVICES.replace("233", "241"))
    assert host.ensure() == ""
    assert description(host.node) == (241, 512, 0o400)
    host.capability.write_text(CAPABILITY.replace("512", "513"))
    assert host.ensure() == ""
    assert description(host.node.with_name("nvidia-cap513")) == (241, 513, 0o400)


def test_a_mode_that_somebody_has_opened_is_closed(host: Host) -> None:
    host.ensure()
    host.node.chmod(0o666)
    assert host.ensure() == ""
    assert description(host.node) == RIGHT


def test_a_file_in_the_place_of_the_node_is_replaced(host: Host) -> None:
    host.node.parent.mkdir()
    host.node.write_text("")
    assert host.ensure() == ""
    assert description(host.node) == RIGHT


def test_what_a_killed_process_left_does_not_prevent_the_node(host: Host) -> None:
    host.ensure()
    host.node.rename(host.node.with_name(".nvidia-cap512"))
    assert host.ensure() == ""
    assert [path.name for path in host.node.parent.iterdir()] == ["nvidia-cap512"]


def test_without_the_capability_the_reason_says_to_update_the_driver(host: Host) -> None:
    host.capability.unlink()
    assert host.ensure() == (
        "the GPU driver has no fabric-imex-mgmt capability"
        " (/proc/driver/nvidia/capabilities/fabric-imex-mgmt does not exist), so nvidia-imex cannot start:"
        " update the driver, and check that NVreg_ImexChannelCount is not 0"
    )


def test_an_unreadable_capability_is_named(host: Host) -> None:
    host.capability.unlink()
    host.capability.mkdir()
    assert host.ensure() == (
        "/proc/driver/nvidia/capabilities/fabric-imex-mgmt cannot be read: Is a directory; check the GPU driver"
    )


def test_an_incomplete_capability_is_named(host: Host) -> None:
    host.capability.write_text("DeviceFileMinor: 512\n")
    assert "has no DeviceFileMinor or no DeviceFileMode" in host.ensure()
    assert not host.node.exists()


def test_a_driver_without_capability_devices_is_named(host: Host) -> None:
    host.devices.write_text("Character devices:\n234 nvidia-caps-imex-channels\n")
    assert "proc/devices has no nvidia-caps: the GPU driver is not loaded" in host.ensure()


def test_a_node_that_only_the_administrator_may_create_is_explained_with_the_command(host: Host) -> None:
    host.capability.write_text(CAPABILITY.replace("Modify: 1", "Modify: 0"))
    reason = host.ensure()
    assert "NVreg_ModifyDeviceFiles=0" in reason
    assert reason.endswith(f"run {COMMAND}")
    assert not host.node.exists()


def test_a_node_that_the_administrator_has_created_is_enough(host: Host) -> None:
    host.ensure()
    host.capability.write_text(CAPABILITY.replace("Modify: 1", "Modify: 0"))
    assert host.ensure() == ""


def test_the_command_in_the_reason_creates_the_node(host: Host) -> None:
    host.node.parent.mkdir()
    command = COMMAND.replace("/dev", f"{host.root}/dev")
    subprocess.run(command.split(), check=True)
    before = host.node.lstat()
    assert host.ensure() == ""
    assert host.node.lstat() == before


def test_without_permission_the_reason_says_what_imex_node_needs(tmp_path: Path) -> None:
    """In a user namespace the kernel refuses mknod, even to root."""
    host = Host(tmp_path)
    program = (
        "import sys; from pathlib import Path; from imex_dra.hardware.capability import ensure_capability_node\n"
        "print(ensure_capability_node(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", program, str(host.root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "imex node may not create it (Operation not permitted)" in done.stdout
    assert "CAP_MKNOD" in done.stdout
    assert done.stdout.strip().endswith(f"or run {COMMAND}")
    assert not host.node.exists()


def test_a_host_without_dev_is_explained(host: Host) -> None:
    (host.root / "dev").rmdir()
    assert "(No such file or directory)" in host.ensure()
