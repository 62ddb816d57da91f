"""The kernel's files: channel device numbers, driver parameters, and the GPUs on the PCI bus."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.host import channel_major, read_kernel
from imex_dra.hardware.report import KernelInfo
from tests.nvml.stub import BOOT_ID, StubGpu, StubHost

PROC_DEVICES = """Character devices:
  1 mem
  4 /dev/vc/0
195 nvidia
195 nvidiactl
234 nvidia-caps
238 nvidia-caps-imex-channels
509 nvidia-uvm

Block devices:
  7 loop
259 blkext
"""


@pytest.fixture
def host(tmp_path: Path) -> StubHost:
    return StubHost(tmp_path / "host", None)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        (PROC_DEVICES, 238),
        (PROC_DEVICES.replace("238", "  8"), 8),
        ("Character devices:\n511 nvidia-caps-imex-channels\n", 511),
        ("Block devices:\n  7 nvidia-caps-imex-channels\n\n" + PROC_DEVICES, 238),
    ],
)
def test_the_channel_major_comes_from_the_character_devices(tmp_path: Path, text: str, major: int) -> None:
    (tmp_path / "devices").write_text(text)
    assert channel_major(tmp_path / "devices") == major


@pytest.mark.parametrize(
    "text",
    [
        "",
        PROC_DEVICES.replace("238 nvidia-caps-imex-channels\n", ""),
        PROC_DEVICES.replace("imex-channels", "imex-channels-2"),
        "Character devices:\n  1 mem\n\nBlock devices:\n238 nvidia-caps-imex-channels\n",
    ],
    ids=["empty file", "no driver", "another name", "a block device"],
)
def test_a_missing_channel_device_class_is_an_error_that_names_the_driver(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices").write_text(text)
    with pytest.raises(Misconfigured, match="has no nvidia-caps-imex-channels: the GPU driver is not loaded"):
        channel_major(tmp_path / "devices")


def test_a_missing_proc_devices_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="devices cannot be read: No such file or directory"):
        channel_major(tmp_path / "devices")


def test_the_kernel_files_of_a_healthy_node_are_read(host: StubHost) -> None:
    assert read_kernel(host.root) == KernelInfo(pci_gpus=4, channel_major=234, channel_count=2048, boot_id=BOOT_ID)


def test_an_empty_root_yields_no_values(tmp_path: Path) -> None:
    assert read_kernel(tmp_path) == KernelInfo()


def test_gpus_with_and_without_a_display_are_counted(host: StubHost) -> None:
    host.gpus(StubGpu())
    host.pci_device("0009:01:00.0", vendor="0x10de", pci_class="0x030000")
    assert read_kernel(host.root).pci_gpus == 2


def test_other_devices_and_virtual_functions_are_not_counted(host: StubHost) -> None:
    host.gpus(StubGpu())
    host.pci_device("0009:01:00.0", vendor="0x1002", pci_class="0x030000")
    host.pci_device("0009:02:00.0", vendor="0x10de", pci_class="0x040300")
    (host.pci_device("0009:03:00.4", vendor="0x10de", pci_class="0x030200") / "physfn").symlink_to("..")
    (host.root / "sys/bus/pci/devices/0009:04:00.0").mkdir()
    assert read_kernel(host.root).pci_gpus == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("ImexChannelCount: 0\n", 0),
        ("EnableMSI: 1\nImexChannelCount: 4096\n", 4096),
        ("ImexChannelCountX: 1\n", None),
        ("ImexChannelCount: many\n", None),
        ("", None),
    ],
)
def test_the_channel_count_is_a_parameter_of_the_driver(host: StubHost, text: str, count: int | None) -> None:
    host.write("proc/driver/nvidia/params", text)
    assert read_kernel(host.root).channel_count == count
