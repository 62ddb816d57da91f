"""A node's disk: its hardware, its checkpoint, its CDI directory, and a ledger over them."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from imex_dra.cdi.directory import Directory
from imex_dra.hardware.simulated import HardwareFile, SimulatedHardware
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim
from imex_dra.node.ledger import Ledger
from imex_dra.sandbox.noderoot import NodeRoot
from tests.node.facts import NODE


class Desk:
    def __init__(self, path: Path) -> None:
        self.root = NodeRoot(path / "root")
        self.cdi = path / "cdi"
        self.checkpoint = path / "plugin" / "imex-dra.json"
        if not self.root.path.exists():
            self.root.make(HardwareFile(), address="10.0.0.1")

    def ledger(self) -> Ledger:
        """A new one, as after a restart."""
        hardware = SimulatedHardware(self.root.path)
        return Ledger(NODE, CheckpointFile(self.checkpoint), Directory(self.cdi), hardware)

    def enter(self, claim: PreparedClaim, since: int = 0, recall: int = 1000) -> None:
        """As a prepare would that began after unprepare `since`, with a grant of this recall."""
        ledger = self.ledger()
        ledger.enter(claim, structs.replace(ledger.read(), calls=since), recall)

    def stored(self) -> Checkpoint:
        return CheckpointFile(self.checkpoint).load()

    def held(self) -> dict[str, int]:
        """Channels by claim, as the checkpoint has them."""
        return {uid: claim.channel for uid, claim in self.stored().claims.items()}

    def spec(self, uid: str) -> Any:
        return msgspec.json.decode((self.cdi / f"imex-dra.io-channel_{uid}.json").read_bytes())

    def specs(self) -> dict[str, int]:
        """Minors by claim, as a container would get them; -1 without a device."""
        found = {}
        for path in self.cdi.glob("*.json"):
            (device,) = msgspec.json.decode(path.read_bytes())["devices"]
            nodes = device["containerEdits"].get("deviceNodes", [{"minor": -1}])
            found[device["name"]] = nodes[0]["minor"]
        return found

    def files(self) -> set[str]:
        """Everything in the two directories, hidden files too."""
        return {path.name for place in (self.cdi, self.checkpoint.parent) for path in place.glob("*")}
