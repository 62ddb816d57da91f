from pathlib import Path

import pytest

from imex_dra.hardware.kernel import read_kernel
from imex_dra.hardware.report import Kernel
from tests.nvml.stub import BOOT, StubGpu, StubHost


@pytest.fixture
def host(tmp_path: Path) -> StubHost:
    return StubHost(tmp_path / "host", None)


def test_what_the_kernel_of_a_healthy_node_says(host: StubHost) -> None:
    assert read_kernel(host.root) == Kernel(4, 234, 2048, imex_management=True, boot_id=BOOT)


def test_a_root_without_anything_says_nothing(tmp_path: Path) -> None:
    assert read_kernel(tmp_path) == Kernel()


def test_gpus_are_counted_with_and_without_a_screen(host: StubHost) -> None:
    host.gpus(StubGpu())
    host.pci_device("0009:01:00.0", vendor="0x10de", kind="0x030000")
    assert read_kernel(host.root).pci_gpus == 2


def test_other_devices_and_shares_of_a_gpu_are_not_counted(host: StubHost) -> None:
    host.gpus(StubGpu())
    host.pci_device("0009:01:00.0", vendor="0x1002", kind="0x030000")
    host.pci_device("0009:02:00.0", vendor="0x10de", kind="0x040300")
    (host.pci_device("0009:03:00.4", vendor="0x10de", kind="0x030200") / "physfn").symlink_to("..")
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
def test_the_channel_count_is_the_driver_s_parameter(host: StubHost, text: str, count: int | None) -> None:
    host.write("proc/driver/nvidia/params", text)
    assert read_kernel(host.root).channel_count == count
