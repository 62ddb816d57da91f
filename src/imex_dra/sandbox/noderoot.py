"""The root directory of a simulated node, made and changed: what the rack model says of the hardware."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from imex_dra.api.names import CHANNEL_DEVICE_CLASS
from imex_dra.base.files import write_atomically
from imex_dra.hardware.simulated import HardwareFile

CHANNELS = "dev/nvidia-caps-imex-channels"
_FABRIC_ID = "fabric-id"
"""Names the node to the fabric; not a thing of /run, but it lies there."""


class NodeRoot:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self, hardware: HardwareFile, *, address: str, channel_major: int = 234) -> None:
        for directory in ("run", "proc", "etc/nvidia-imex", CHANNELS):
            (self.path / directory).mkdir(parents=True, exist_ok=True)
        (self.path / "addresses").write_text(f"{address}\n")
        (self.path / "hosts").touch()
        self.load_driver(channel_major)
        self.write_hardware(hardware)

    def boot(self, boot_id: str) -> None:
        """What a machine finds when its power is back: /run and /dev are empty, disks are as they were."""
        for path in (self.path / "run").iterdir():
            if path.name != _FABRIC_ID:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for channel in (self.path / CHANNELS).iterdir():
            channel.unlink()
        self.write_hardware(msgspec.structs.replace(self.hardware(), boot_id=boot_id))

    def hardware(self) -> HardwareFile:
        return msgspec.json.decode((self.path / "hardware.json").read_bytes(), type=HardwareFile)

    def write_hardware(self, hardware: HardwareFile) -> None:
        write_atomically(self.path / "hardware.json", msgspec.json.encode(hardware))

    def write_network(self, network: Mapping[str, str | float]) -> None:
        """By the address of another node: `drop`, or how many milliseconds later what we send arrives."""
        write_atomically(self.path / "network.json", msgspec.json.encode(network))

    def load_driver(self, channel_major: int) -> None:
        """The kernel gives another major at each load."""
        characters = f"Character devices:\n  1 mem\n{channel_major} {CHANNEL_DEVICE_CLASS}\n"
        write_atomically(self.path / "proc/devices", f"{characters}\nBlock devices:\n  7 loop\n".encode())
