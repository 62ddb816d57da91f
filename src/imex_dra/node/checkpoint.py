"""The checkpoint: what this node has prepared, on disk, so that it survives a restart of the program.

The file is an envelope of a version, the encoded payload, and a checksum over exactly these bytes. It is read and
written under one lock, because two node programs share it during an update.

Three counters guard against races between prepare, unprepare and channel reuse (docs/design/prepare.md,
docs/design/channel-reuse.md):

- `unprepare_sequence` numbers unprepare calls. A prepare that began before the last unprepare of its claim must
  not be committed. The kubelet may prepare the same UID again, so a tombstone by UID would be wrong.
- `fences` holds, by partition, the epoch that this node acknowledged. A grant from an earlier epoch must not be
  committed.
- `file_id` changes when the file is lost and created again. The fences are lost with it, so a prepare that read
  another file starts again.

A full disk must not keep the kubelet from unpreparing. So the file is always a little larger than its content, and
if there is no space for a new file it is overwritten in place. A kill in the middle of that leaves a file that
fails its checksum and is rebuilt from the CDI specs, like any unreadable one.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from imex_dra.base.errors import Misconfigured
from imex_dra.base.files import write_atomically

VERSION = 1
_KEPT_UNPREPARES = 256

_BLOCK = 4096
_SPARE = 512
"""Bytes by which the file is larger than its content, at least: room for a few unprepares on a full disk."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_LOCK_TIMEOUT = 20.0
"""Seconds; the kubelet waits 45 for an answer. The lock is held for a few milliseconds at a time."""
_LOCK_PERIOD = 0.002
"""Seconds between two attempts to get the lock. There is no blocking flock with a time limit."""


class PreparedClaim(Struct, frozen=True, rename="camel"):
    """A claim whose containers may use a channel."""

    uid: str
    namespace: str
    name: str
    domain_uid: str
    domain_name: str
    partition: str
    channel: int
    """-1 on a node without NVLink fabric."""
    all_channels: bool
    devices: tuple[tuple[str, str, str], ...]
    """Request, pool and device: the answer to a repeated prepare."""
    boot_id: str
    channel_count: int
    """Number of channels on the node, for a claim of all channels."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Checkpoint(Struct, frozen=True, rename="camel"):
    claims: dict[str, PreparedClaim] = {}
    unprepare_sequence: int = 0
    unprepared: dict[str, int] = {}
    """Sequence number of the last unprepare, by claim UID; only the latest are kept."""
    fences: dict[str, int] = {}
    fenced_partition: str = ""
    """Partition of the last fence: grants of other partitions are not committed either."""
    file_id: str = ""
    """Empty while there is no file."""

    def with_claim(self, claim: PreparedClaim) -> "Checkpoint":
        return structs.replace(self, claims={**self.claims, claim.uid: claim})

    def without_claim(self, uid: str) -> "Checkpoint":
        sequence = self.unprepare_sequence + 1
        unprepared = {**{u: n for u, n in self.unprepared.items() if u != uid}, uid: sequence}
        latest = dict(sorted(unprepared.items(), key=lambda entry: entry[1])[-_KEPT_UNPREPARES:])
        claims = {u: claim for u, claim in self.claims.items() if u != uid}
        return structs.replace(self, claims=claims, unprepare_sequence=sequence, unprepared=latest)

    def with_fence(self, partition: str, epoch: int) -> "Checkpoint":
        return structs.replace(self, fences={**self.fences, partition: epoch}, fenced_partition=partition)

    def fence(self, partition: str) -> int:
        return self.fences.get(partition, 0)

    def sequence_at(self, began: "Checkpoint") -> int:
        """The unprepare sequence when `began` was read. That of a lost file says nothing about this one, so that
        every unprepare in this file counts as later.
        """
        return began.unprepare_sequence if began.file_id == self.file_id else 0

    def unprepared_since(self, uid: str, sequence: int) -> bool:
        return self.unprepared.get(uid, 0) > sequence

    def live_claims(self, boot_id: str) -> list[PreparedClaim]:
        """Claims with a channel whose processes may be alive; no process survives a reboot."""
        return [c for c in self.claims.values() if c.channel >= 0 and c.boot_id == boot_id]

    def shares_channel(self, claim: PreparedClaim) -> bool:
        """Whether another live claim of the same ComputeDomain has the same channel of the same partition."""
        own = (claim.partition, claim.channel, claim.domain_uid)
        others = (c for c in self.live_claims(claim.boot_id) if c.uid != claim.uid)
        return any((c.partition, c.channel, c.domain_uid) == own for c in others)


class Envelope(Struct):
    version: int
    checksum: str
    payload: str


class Unreadable(Misconfigured):
    pass


class CheckpointFile:
    def __init__(self, path: Path, *, lock_timeout: float = _LOCK_TIMEOUT) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")
        self._lock_timeout = lock_timeout

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock against other threads and processes. It blocks: call it in a thread.

        Raises OSError if another process holds it for too long: a program that hangs during an update would
        otherwise block every thread of this one, without an explanation.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._lock_timeout
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    cause = f"another process has held the lock for {self._lock_timeout:g} s"
                    raise OSError(errno.ETIMEDOUT, cause, str(self._lock)) from None
            time.sleep(_LOCK_PERIOD)

    def load(self) -> Checkpoint:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Checkpoint()
        try:
            envelope = msgspec.json.decode(content, type=Envelope)
            if envelope.version != VERSION:
                raise Unreadable(f"{self._path}: version {envelope.version} is not supported, only {VERSION}")
            if envelope.checksum != _checksum(envelope.payload):
                raise Unreadable(f"{self._path}: the checksum is wrong")
            return msgspec.json.decode(envelope.payload, type=Checkpoint)
        except (ValueError, RecursionError) as error:  # also raised by msgspec, and for bytes that are not UTF-8
            raise Unreadable(f"{self._path}: {error}") from error

    def save(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.file_id:
            checkpoint = structs.replace(checkpoint, file_id=secrets.token_hex(8))
        payload = msgspec.json.encode(checkpoint).decode()
        content = msgspec.json.encode(Envelope(VERSION, _checksum(payload), payload))
        size = -(-(len(content) + _SPARE) // _BLOCK) * _BLOCK
        try:
            write_atomically(self._path, content.ljust(size), mode=0o600)
        except OSError as error:
            if error.errno not in _NO_SPACE or not self._overwrite(content):
                raise

    def _overwrite(self, content: bytes) -> bool:
        """Writes into the blocks that the file already has; False if they are too few."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            size = os.fstat(descriptor).st_size
            if len(content) > size:
                return False
            return os.pwrite(descriptor, content.ljust(size), 0) == size
        finally:
            os.close(descriptor)

    def back_up(self) -> Path:
        """Copies an unreadable file, for people. The file itself stays until the next save: if it were missing, a
        program that is killed now would start with the belief that nothing is prepared.
        """
        backup = self._path.with_suffix(".unreadable")
        write_atomically(backup, self._path.read_bytes(), mode=0o600)
        return backup

    def remove_temporary_files(self) -> None:
        """Left by a process that was killed while it wrote. Call it under the lock."""
        for leftover in self._path.parent.glob(f".{self._path.stem}.*"):
            leftover.unlink(missing_ok=True)


def _checksum(payload: str) -> str:
    return hashlib.sha256(payload.encode()).hexdigest()
