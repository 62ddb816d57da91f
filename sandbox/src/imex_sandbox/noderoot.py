"""Creates and changes the root directory of a simulated node.

`hardware.json` describes the hardware, `network.json` the faults of the IMEX network, `addresses` the node's
address.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imex_dra.api.names import CHANNEL_DEVICE_CLASS
from imex_dra.base.files import write_atomically
from imex_dra.daemon.supervisor import SCRIPT
from imex_sandbox.simulated import CHANNELS, HardwareFile

_IMEX = "run/imex"
_FABRIC_ID = "fabric-id"
"""Identifies the node to the fabric. It is a file in /run but belongs to the hardware, so it survives a reboot."""


class NodeRoot:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def imex(self) -> Path:
        """The directory that `imex node` shares with the supervisor of nvidia-imex. A reboot empties it."""
        return self.path / _IMEX

    def supervisor_command(self, fabric: Path) -> Sequence[str]:
        """Soft IMEX under the supervisor of a daemon pod."""
        return ["sh", str(SCRIPT), str(self.imex), "--", *self.soft_imex("daemon", fabric)]

    def soft_imex(self, program: str, fabric: Path) -> Sequence[str]:
        """The command line of soft IMEX on this node: `daemon` or `ctl`."""
        variables = (f"IMEX_NODE_ROOT={self.path}", f"IMEX_FABRIC_DIR={fabric}")
        return ["env", *variables, sys.executable, "-m", f"imex_sandbox.softimex.{program}"]

    def make(self, hardware: HardwareFile, *, address: str, channel_major: int = 234) -> None:
        for directory in ("run", "proc", CHANNELS):
            (self.path / directory).mkdir(parents=True, exist_ok=True)
        (self.path / "addresses").write_text(f"{address}\n")
        # What a bind mount does in a daemon pod.
        hosts = self.path / "hosts"
        hosts.unlink(missing_ok=True)
        hosts.symlink_to(f"{_IMEX}/hosts")
        self.load_driver(channel_major)
        self.write_hardware(hardware)

    def boot(self, boot_id: str) -> None:
        """Do what a reboot does: empty /run and /dev, keep the disk."""
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
        """Map the address of another node to `drop`, or to the delay in milliseconds of what this node sends."""
        write_atomically(self.path / "network.json", msgspec.json.encode(network))

    def load_driver(self, channel_major: int) -> None:
        """The kernel may assign another major number each time that the GPU driver is loaded."""
        characters = f"Character devices:\n  1 mem\n{channel_major} {CHANNEL_DEVICE_CLASS}\n"
        write_atomically(self.path / "proc/devices", f"{characters}\nBlock devices:\n  7 loop\n".encode())
