"""What this node has prepared, on disk, so that it outlives us, a reboot of ours, and the API objects.

The file is an envelope of a version, the payload as it was encoded, and a checksum over exactly these bytes; so
a later version's payload stays verifiable for an earlier one. It is read and written under one lock, because
during an update two plugins share it. What can't be read is kept aside and rebuilt by the caller.

`overtaken` answers one question: did an unprepare of this claim arrive after a given prepare began? It holds a
number per claim and call, not a tombstone by UID, because the kubelet may prepare the same UID again.

`promises` hold, per partition, the recall up to which we have answered: a grant from before it is not taken any
more, however late it comes (`node/ledger.py`). They would be lost with the file, so each file is of an `era`,
and a prepare that began in another one begins again.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from imex_dra.base.errors import Misconfigured
from imex_dra.base.files import write_atomically

VERSION = 1
_REMEMBERED_CALLS = 256


class PreparedClaim(Struct, frozen=True, rename="camel"):
    """A claim whose containers may hold a channel."""

    uid: str
    namespace: str
    name: str
    domain_uid: str
    domain_name: str
    partition: str
    channel: int
    """-1 where the node has no NVLink fabric, and so no channel."""
    all: bool
    devices: tuple[tuple[str, str, str], ...]
    """Request, pool, device: what the kubelet is told again when it asks again."""
    boot_id: str
    channel_count: int = 2048
    """Of the node, for a claim of all channels; what was written before had the driver's own default."""


class Checkpoint(Struct, frozen=True, rename="camel"):
    claims: dict[str, PreparedClaim] = {}
    calls: int = 0
    """Counts unprepare calls."""
    unprepared: dict[str, int] = {}
    """The number of the last such call, by claim; the latest only."""
    promises: dict[str, int] = {}
    place: str = ""
    """The partition of the last promise: grants of another one are not taken any more either."""
    era: str = ""
    """Empty as long as there is no file."""

    def with_claim(self, claim: PreparedClaim) -> "Checkpoint":
        return structs.replace(self, claims={**self.claims, claim.uid: claim})

    def without_claim(self, uid: str) -> "Checkpoint":
        calls = self.calls + 1
        unprepared = {**{u: n for u, n in self.unprepared.items() if u != uid}, uid: calls}
        latest = dict(sorted(unprepared.items(), key=lambda entry: entry[1])[-_REMEMBERED_CALLS:])
        claims = {u: claim for u, claim in self.claims.items() if u != uid}
        return structs.replace(self, claims=claims, calls=calls, unprepared=latest)

    def with_promise(self, partition: str, recall: int) -> "Checkpoint":
        return structs.replace(self, promises={**self.promises, partition: recall}, place=partition)

    def promised(self, partition: str) -> int:
        return self.promises.get(partition, 0)

    def overtaken(self, uid: str, since: int) -> bool:
        return self.unprepared.get(uid, 0) > since

    def living(self, boot_id: str) -> list[PreparedClaim]:
        """Claims with a channel whose processes may live: those of an earlier boot are gone."""
        return [c for c in self.claims.values() if c.channel >= 0 and c.boot_id == boot_id]

    def shares(self, claim: PreparedClaim) -> bool:
        """Whether the very same channel is held here for the very same ComputeDomain already."""
        mine = (claim.partition, claim.channel, claim.domain_uid)
        others = (c for c in self.living(claim.boot_id) if c.uid != claim.uid)
        return any((c.partition, c.channel, c.domain_uid) == mine for c in others)


class Envelope(Struct):
    version: int
    checksum: str
    payload: str


class Unreadable(Misconfigured):
    pass


class CheckpointFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")

    @contextmanager
    def locked(self) -> Iterator["CheckpointFile"]:
        """Held for the length of one decision, across processes; blocks, so call it in a thread."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(descriptor)

    def load(self) -> Checkpoint:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Checkpoint()
        try:
            envelope = msgspec.json.decode(content, type=Envelope)
            if envelope.checksum != _checksum(envelope.payload):
                raise Unreadable(f"{self._path}: the checksum is wrong")
            return msgspec.json.decode(envelope.payload, type=Checkpoint)
        except ValueError as error:  # of msgspec's own, or because it is no UTF-8
            raise Unreadable(f"{self._path}: {error}") from error

    def save(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.era:
            checkpoint = structs.replace(checkpoint, era=secrets.token_hex(8))
        payload = msgspec.json.encode(checkpoint).decode()
        envelope = Envelope(VERSION, _checksum(payload), payload)
        write_atomically(self._path, msgspec.json.encode(envelope), mode=0o600)

    def set_aside(self) -> Path:
        """A copy, for somebody who wants to know what was in it. The file itself stays until it is saved anew:
        one that is not there would mean that nothing is prepared.
        """
        aside = self._path.with_suffix(".unreadable")
        write_atomically(aside, self._path.read_bytes(), mode=0o600)
        return aside

    def remove_leftovers(self) -> None:
        """Of a process that was killed while it wrote; under the lock, nobody else writes."""
        for leftover in self._path.parent.glob(f".{self._path.stem}.*"):
            leftover.unlink(missing_ok=True)


def _checksum(payload: str) -> str:
    return hashlib.sha256(payload.encode()).hexdigest()
