"""Device numbers of channels, out of /proc/devices."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import DeviceNode
from imex_dra.hardware.devices import channel_major, channel_node

REAL = """Character devices:
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


@pytest.mark.parametrize(
    ("text", "major"),
    [
        (REAL, 238),
        (REAL.replace("238", "  8"), 8),
        ("Character devices:\n511 nvidia-caps-imex-channels\n", 511),
        ("Block devices:\n  7 nvidia-caps-imex-channels\n\n" + REAL, 238),
    ],
)
def test_the_major_is_the_character_devices(tmp_path: Path, text: str, major: int) -> None:
    (tmp_path / "devices").write_text(text)
    assert channel_major(tmp_path / "devices") == major


@pytest.mark.parametrize(
    "text",
    [
        "",
        REAL.replace("238 nvidia-caps-imex-channels\n", ""),
        REAL.replace("imex-channels", "imex-channels-2"),
        "Character devices:\n  1 mem\n\nBlock devices:\n238 nvidia-caps-imex-channels\n",
    ],
    ids=["empty", "no driver", "another name", "a block device"],
)
def test_without_the_driver_it_is_said_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices").write_text(text)
    with pytest.raises(Misconfigured, match="lists no nvidia-caps-imex-channels: the GPU driver is not loaded"):
        channel_major(tmp_path / "devices")


def test_without_the_file_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="devices can't be read: No such file or directory"):
        channel_major(tmp_path / "devices")


def test_a_channel_is_a_character_device_that_everybody_in_the_container_may_use() -> None:
    assert channel_node(238, 7) == DeviceNode(
        "/dev/nvidia-caps-imex-channels/channel7", 238, 7, "c", file_mode=0o666, permissions="rw"
    )
