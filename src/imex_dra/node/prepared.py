"""The claims that this node has prepared: the checkpoint and the CDI specs, changed together under one lock.

The CDI spec is written before the checkpoint and removed before it; the device nodes on the host that it refers to
are created before the spec and removed after it. A kill at any instruction is then harmless: a
spec without a checkpoint entry was never returned to the kubelet and is removed by the sweep; an entry without its
spec is removed when the kubelet unprepares the claim again, or gets a new spec. While a spec cannot be removed,
the entry stays, too: through a spec that is left behind a container could still get the channel.

A disk that is full or fails raises DiskError, which the kubelet and our own loops retry.

The checkpoint's fence keeps a late prepare from using a channel that may have been reused. See
docs/design/prepare.md and docs/design/channel-reuse.md.

Everything here blocks on the disk and on the lock: call it in a thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.claimreasons import claim_unprepared
from imex_dra.api.names import DRIVER
from imex_dra.api.nodereasons import disk_error
from imex_dra.api.partitionreasons import channel_held, partition_outdated
from imex_dra.base.errors import ImexError, NotYet
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.hardware.protocol import Hardware
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim, Unreadable

log = structlog.get_logger()

_ANNOTATION = "imex-dra.io/prepared-claim"


class StaleGrant(NotYet):
    """The grant is older than the fence, or the checkpoint was lost since it was read."""


class DiskError(NotYet):
    """The checkpoint or a CDI spec cannot be read or written at the moment."""

    def __init__(self, node: str, error: OSError) -> None:
        self.cause = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        explanation = disk_error(node=node, cause=self.cause)
        self.reason = explanation.reason
        super().__init__(explanation.message())


class PreparedClaims(Struct, frozen=True):
    node: str
    file: CheckpointFile
    specs: Directory
    hardware: Hardware

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self.file.locked():
                yield
        except OSError as error:
            raise DiskError(self.node, error) from error

    def read(self) -> Checkpoint:
        with self._locked():
            return self._load()

    def add(self, claim: PreparedClaim, read_before: Checkpoint, epoch: int = 0) -> PreparedClaim:
        """Commits a prepare, and returns what is prepared now. `read_before` is the checkpoint that the decision
        was based on, `epoch` that of the partition that granted the channel.
        """
        with self._locked():
            checkpoint = self._load()
            if checkpoint.unprepared_since(claim.uid, checkpoint.sequence_at(read_before)):
                raise claim_unprepared(claim=str(claim)).error(NotYet)
            # Another program of this node, or an earlier call, may have prepared it meanwhile, and the kubelet may
            # have started the pod with that channel.
            existing = checkpoint.claims.get(claim.uid)
            if existing is not None and existing.boot_id == claim.boot_id:
                self._write_spec(existing)
                return existing
            self._check_fence(checkpoint, claim, read_before.file_id, epoch)
            self._check_channel_free(checkpoint, claim)
            try:
                # The spec first: see the module's docstring.
                self._write_spec(claim)
                self.file.save(checkpoint.with_claim(claim))
            except (ImexError, OSError):
                if existing is None:
                    with suppress(OSError):  # the first error is the cause; the sweep removes what is left
                        self._remove_spec(claim.uid)
                raise
            return claim

    def rewrite_spec(self, claim: PreparedClaim) -> None:
        """The device major may have changed with a reload of the GPU driver."""
        with self._locked():
            if self._load().claims.get(claim.uid) != claim:
                raise claim_unprepared(claim=str(claim)).error(NotYet)
            self._write_spec(claim)

    def rewrite_specs(self, boot_id: str) -> None:
        """Of all claims that were prepared since the node booted. One that fails does not stop the others."""
        errors: list[ImexError | OSError] = []
        with self._locked():
            for claim in self._load().claims.values():
                if claim.boot_id != boot_id:
                    continue
                try:
                    self._write_spec(claim)
                except (ImexError, OSError) as error:
                    errors.append(error)
            if errors:
                raise errors[0]

    def remove(self, uid: str) -> Checkpoint:
        """Unprepares. Needs only the disk, and succeeds for a claim that is not prepared."""
        with self._locked():
            return self._remove(uid)

    def remove_unless(self, uid: str, is_used: Callable[[], bool]) -> Checkpoint | None:
        """Unprepares a claim that `is_used` denies. It is asked under the lock, so that a prepare that begins now
        finds the claim either untouched or gone. None if the claim is used.
        """
        with self._locked():
            return None if is_used() else self._remove(uid)

    def _remove(self, uid: str) -> Checkpoint:
        checkpoint = self._load()
        # The spec first: see the module's docstring.
        self._remove_spec(uid)
        after = checkpoint.without_claim(uid)
        self.file.save(after)
        return after

    def raise_fence(self, partition: str, epoch: int) -> Checkpoint:
        """From now on no grant of this partition from before `epoch` is committed, and none of another partition.
        Returns what is held at that moment: together, an acknowledgment of the epoch.
        """
        with self._locked():
            before = self._load()
            after = before.with_fence(partition, max(epoch, before.fence(partition)))
            if after != before:
                self.file.save(after)
            return after

    def remove_orphans(self) -> None:
        """Removes what a killed program wrote for a claim that it never finished preparing. Under the lock, no
        prepare is between its spec and its checkpoint entry.
        """
        with self._locked():
            self.file.remove_temporary_files()
            self.specs.remove_temporary_files()
            prepared = self._load().claims.keys()
            for orphan in (self.specs.claims() | self.hardware.claims_with_devices()) - prepared:
                log.warning("removing a CDI spec or devices without a checkpoint entry", claim_uid=orphan)
                self._remove_spec(orphan)

    def _load(self) -> Checkpoint:
        try:
            checkpoint = self.file.load()
        except Unreadable as error:
            self._back_up()
            return self._rebuild(str(error))
        # A node that never prepared a claim has no file, and no specs either.
        if not checkpoint.file_id and self.specs.claims():
            return self._rebuild("the file is missing")
        return checkpoint

    def _back_up(self) -> None:
        try:
            log.warning("the unreadable checkpoint is kept", file=str(self.file.back_up()))
        except OSError as error:
            log.warning("the unreadable checkpoint cannot be kept", error=str(error))

    def _rebuild(self, cause: str) -> Checkpoint:
        checkpoint = self._checkpoint_of_specs()
        self.file.save(checkpoint)
        log.error("checkpoint rebuilt from CDI specs", cause=cause, claims=len(checkpoint.claims))
        return self.file.load()  # with the new file_id

    def _checkpoint_of_specs(self) -> Checkpoint:
        checkpoint = Checkpoint()
        for uid in self.specs.claims():
            spec = self.specs.read(uid)
            try:
                annotation = spec.annotations.get(_ANNOTATION, "") if spec else ""
                checkpoint = checkpoint.with_claim(msgspec.json.decode(annotation, type=PreparedClaim))
            except (ValueError, RecursionError) as error:
                log.error("a CDI spec has no valid claim annotation", claim_uid=uid, error=str(error))
        return checkpoint

    def _check_fence(self, checkpoint: Checkpoint, claim: PreparedClaim, file_id: str, epoch: int) -> None:
        # The controller reuses a channel once every member has acknowledged a later epoch without holding it. This
        # check is what makes an acknowledgment binding: a prepare that was decided before it cannot commit after
        # it, in any process. A claim that joins others on the same channel is exempt: the acknowledgment
        # reported, or will report, that channel as held.
        fence, partition = checkpoint.fence(claim.partition), checkpoint.fenced_partition or claim.partition
        if claim.channel < 0 or (checkpoint.shares_channel(claim) and partition == claim.partition):
            return
        if epoch < fence or file_id != checkpoint.file_id or partition != claim.partition:
            outdated = partition_outdated(
                partition=claim.partition, node=self.node, epoch=epoch, acknowledged=fence
            )
            raise outdated.error(StaleGrant)

    def _check_channel_free(self, checkpoint: Checkpoint, claim: PreparedClaim) -> None:
        # On one node a channel number is one device, whichever partition assigned it.
        for holder in checkpoint.live_claims(claim.boot_id):
            if holder.channel == claim.channel and holder.domain_uid != claim.domain_uid:
                held = channel_held(
                    channel=claim.channel,
                    partition=holder.partition,
                    node=self.node,
                    holder=str(holder),
                    holder_domain=f"{holder.namespace}/{holder.domain_name}",
                )
                raise held.error(NotYet)

    def _write_spec(self, claim: PreparedClaim) -> None:
        annotations = {_ANNOTATION: msgspec.json.encode(claim).decode(), "imex-dra.io/driver": DRIVER}
        spec = self.specs.read(claim.uid)
        edits = self._edits(claim)
        if spec and spec.annotations == annotations and [d.container_edits for d in spec.devices] == [edits]:
            return
        self.specs.write(claim.uid, edits, annotations)

    def _remove_spec(self, uid: str) -> None:
        # A spec refers to device nodes of the host, so they are created before it and removed after it.
        self.specs.remove(uid)
        self.hardware.remove_devices(uid)

    def _edits(self, claim: PreparedClaim) -> ContainerEdits:
        environment = [f"COMPUTE_DOMAIN_NAME={claim.domain_name}", f"COMPUTE_DOMAIN_UUID={claim.domain_uid}"]
        if claim.channel < 0:
            return ContainerEdits(env=tuple(environment))
        environment.append(f"COMPUTE_DOMAIN_CHANNEL={claim.channel}")
        others = [c for c in range(claim.channel_count) if c != claim.channel] if claim.all_channels else []
        devices = self.hardware.container_edits(claim.uid, (claim.channel, *others))
        return ContainerEdits(env=tuple(environment)) + devices
