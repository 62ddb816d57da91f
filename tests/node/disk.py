"""A node's disk: its simulated hardware, its checkpoint and its CDI directory."""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from imex_dra.cdi.directory import Directory
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim
from imex_dra.node.prepared import PreparedClaims
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedHardware
from tests.node.snapshots import BOOT_ID, NODE, PARTITION


def prepared_claim(
    uid: str,
    *,
    channel: int = 7,
    domain: str = "job",
    partition: str = PARTITION,
    all_channels: bool = False,
    boot_id: str = BOOT_ID,
    channel_count: int = 2048,
) -> PreparedClaim:
    return PreparedClaim(
        uid=uid,
        namespace="team",
        name=f"claim-{uid}",
        domain_uid=f"uid-{domain}",
        domain_name=domain,
        partition=partition,
        channel=channel,
        all_channels=all_channels,
        devices=(("channel", "n1", "channel-0"),),
        boot_id=boot_id,
        channel_count=channel_count,
    )


class NodeDisk:
    """`device_nodes`: the host has device nodes of channels, as a node with NVIDIA hardware; needs CAP_MKNOD."""

    def __init__(self, path: Path, *, device_nodes: bool = False) -> None:
        self.hardware: type[NvmlHardware | SimulatedHardware] = NvmlHardware if device_nodes else SimulatedHardware
        self.root = NodeRoot(path / "root")
        self.cdi = path / "cdi"
        self.checkpoint = path / "plugin" / "imex-dra.json"
        if not self.root.path.exists():
            self.root.make(HardwareFile(), address="10.0.0.1")
            (self.root.path / "dev").mkdir(exist_ok=True)

    def prepared_claims(self) -> PreparedClaims:
        """A new instance, as after a restart."""
        hardware = self.hardware(self.root.path)
        return PreparedClaims(NODE, CheckpointFile(self.checkpoint), Directory(self.cdi), hardware)

    def add(self, claim: PreparedClaim, *, unprepare_sequence: int = 0, epoch: int = 1000) -> None:
        """Commits a prepare that began at `unprepare_sequence`, with a grant from `epoch`."""
        prepared = self.prepared_claims()
        read_before = structs.replace(prepared.read(), unprepare_sequence=unprepare_sequence)
        prepared.add(claim, read_before, epoch)

    def remove(self, uid: str) -> None:
        self.prepared_claims().remove(uid)

    def load_checkpoint(self) -> Checkpoint:
        return CheckpointFile(self.checkpoint).load()

    def held_channels(self) -> dict[str, int]:
        """Channels by claim UID, according to the checkpoint."""
        return {uid: claim.channel for uid, claim in self.load_checkpoint().claims.items()}

    def spec_path(self, uid: str) -> Path:
        return self.cdi / f"imex-dra.io-channel_{uid}.json"

    def spec(self, uid: str) -> Any:
        return msgspec.json.decode(self.spec_path(uid).read_bytes())

    def container_edits(self, uid: str) -> Any:
        (device,) = self.spec(uid)["devices"]
        return device["containerEdits"]

    def spec_channels(self) -> dict[str, int]:
        """Channels by claim UID, according to the CDI specs: the device's minor, or -1 without a device."""
        found = {}
        for path in self.cdi.glob("*.json"):
            try:
                (device,) = msgspec.json.decode(path.read_bytes())["devices"]
            except FileNotFoundError:
                continue  # removed meanwhile
            nodes = device["containerEdits"].get("deviceNodes", [{"minor": -1}])
            found[device["name"]] = nodes[0]["minor"]
        return found

    def host_devices(self) -> dict[str, tuple[int, int]]:
        """Major and minor of the device nodes on the host, by claim UID and name; (0, 0) for other files."""
        claims = self.root.path / "dev/imex-dra/claims"
        numbers = {str(path.relative_to(claims)): path.lstat().st_rdev for path in claims.glob("*/*")}
        return {name: (os.major(number), os.minor(number)) for name, number in numbers.items()}

    def files(self) -> set[str]:
        """All files in the CDI and checkpoint directories, including hidden ones."""
        return {path.name for directory in (self.cdi, self.checkpoint.parent) for path in directory.glob("*")}
