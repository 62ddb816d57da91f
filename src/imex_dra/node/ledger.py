"""The claims this node has prepared: checkpoint and CDI specs, changed together, under one lock.

Order of writing, so that a kill at any instruction leaves nothing that harms: the spec first, then the
checkpoint, when preparing and when unpreparing. A spec without a checkpoint entry is an orphan that nobody was
told of, removed at start; an entry without its spec is mended when the kubelet asks again.

A promise is what makes numbers usable again: once this node has answered a recall, it enters no grant from
before it, whoever was about to. Only a claim that joins others of its ComputeDomain on the very same channel
needs no newer grant: that channel is held here, and the answer said so, or will.

Everything here blocks on the disk and on the lock: call it in a thread.
"""

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.names import DRIVER
from imex_dra.api.reasons import Reason, sentence
from imex_dra.base.errors import NotYet
from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.hardware.protocol import Hardware
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim, Unreadable

log = structlog.get_logger()

_ANNOTATION = "imex-dra.io/prepared-claim"


class Recalled(NotYet):
    """The grant is from before the recall that this node has answered, or the checkpoint was made anew."""


class Ledger(Struct, frozen=True):
    node: str
    file: CheckpointFile
    specs: Directory
    hardware: Hardware

    def read(self) -> Checkpoint:
        with self.file.locked():
            return self._load()

    def enter(self, claim: PreparedClaim, began: Checkpoint, recall: int = 0) -> None:
        """`began`: as it was when the prepare began; `recall`: of the record that grants the channel.

        NotYet if the claim was unprepared since, or its channel is still another ComputeDomain's here; Recalled if
        the grant is too old.
        """
        with self.file.locked():
            checkpoint = self._load()
            if checkpoint.overtaken(claim.uid, began.calls):
                raise NotYet(sentence(Reason.OVERTAKEN, claim=f"{claim.namespace}/{claim.name}"))
            self._expect_fresh(checkpoint, claim, began.era, recall)
            self._expect_channel_free(checkpoint, claim)
            self._write_spec(claim)
            self.file.save(checkpoint.with_claim(claim))

    def mend(self, claim: PreparedClaim) -> None:
        """The spec as it should be now: the driver may have been loaded anew, with another device number."""
        with self.file.locked():
            if self._load().claims.get(claim.uid) != claim:
                raise NotYet(sentence(Reason.OVERTAKEN, claim=f"{claim.namespace}/{claim.name}"))
            self._write_spec(claim)

    def strike(self, uid: str) -> Checkpoint:
        with self.file.locked():
            checkpoint = self._load()
            self.specs.remove(uid)
            after = checkpoint.without_claim(uid)
            self.file.save(after)
            return after

    def promise(self, partition: str, recall: int) -> Checkpoint:
        """From now on no grant of this partition from before `recall` is entered, and none of another partition;
        returns what is held then.
        """
        with self.file.locked():
            before = self._load()
            after = before.with_promise(partition, max(recall, before.promised(partition)))
            if after != before:
                self.file.save(after)
            return after

    def tidy(self) -> None:
        """At start: what was written for a claim that never became prepared."""
        with self.file.locked():
            self.file.remove_leftovers()
            self.specs.remove_leftovers()
            for orphan in self.specs.claims() - self._load().claims.keys():
                log.warning("removing a CDI spec that no prepared claim owns", claim_uid=orphan)
                self.specs.remove(orphan)

    def _load(self) -> Checkpoint:
        try:
            return self.file.load()
        except Unreadable as error:
            checkpoint = self._rebuilt()
            aside = self.file.set_aside()
            log.error(
                "checkpoint rebuilt from CDI specs",
                error=str(error),
                kept=str(aside),
                claims=len(checkpoint.claims),
            )
            self.file.save(checkpoint)
            return checkpoint

    def _rebuilt(self) -> Checkpoint:
        checkpoint = Checkpoint()
        for uid in self.specs.claims():
            spec = self.specs.read(uid)
            try:
                annotation = spec.annotations.get(_ANNOTATION, "") if spec else ""
                checkpoint = checkpoint.with_claim(msgspec.json.decode(annotation, type=PreparedClaim))
            except msgspec.MsgspecError as error:
                log.error("a CDI spec does not say what was prepared", claim_uid=uid, error=str(error))
        return checkpoint

    def _expect_fresh(self, checkpoint: Checkpoint, claim: PreparedClaim, era: str, recall: int) -> None:
        promised, place = checkpoint.promised(claim.partition), checkpoint.place or claim.partition
        if claim.channel < 0 or (checkpoint.shares(claim) and place == claim.partition):
            return
        if recall < promised or era != checkpoint.era or place != claim.partition:
            facts = {"partition": claim.partition, "node": self.node, "seen": recall, "known": promised}
            raise Recalled(sentence(Reason.RECORD_OLD, **facts))

    def _expect_channel_free(self, checkpoint: Checkpoint, claim: PreparedClaim) -> None:
        """Whatever partition it was given in: on one node a number is one device."""
        for holder in checkpoint.living(claim.boot_id):
            if holder.channel == claim.channel and holder.domain_uid != claim.domain_uid:
                raise NotYet(
                    sentence(
                        Reason.CHANNEL_HELD,
                        channel=claim.channel,
                        partition=holder.partition,
                        node=self.node,
                        holder=f"{holder.namespace}/{holder.name}",
                        holder_domain=f"{holder.namespace}/{holder.domain_name}",
                    )
                )

    def _write_spec(self, claim: PreparedClaim) -> None:
        annotations = {_ANNOTATION: msgspec.json.encode(claim).decode(), "imex-dra.io/driver": DRIVER}
        spec = self.specs.read(claim.uid)
        edits = self._edits(claim)
        if spec and spec.annotations == annotations and [d.container_edits for d in spec.devices] == [edits]:
            return
        self.specs.write(claim.uid, edits, annotations)

    def _edits(self, claim: PreparedClaim) -> ContainerEdits:
        environment = [f"COMPUTE_DOMAIN_NAME={claim.domain_name}", f"COMPUTE_DOMAIN_UUID={claim.domain_uid}"]
        if claim.channel < 0:
            return ContainerEdits(env=tuple(environment))
        edits = ContainerEdits(env=(*environment, f"COMPUTE_DOMAIN_CHANNEL={claim.channel}"))
        edits += self.hardware.container_edits(claim.channel)
        if claim.all:
            others = (channel for channel in range(claim.channel_count) if channel != claim.channel)
            nodes = tuple(node for c in others for node in self.hardware.container_edits(c).device_nodes)
            edits += ContainerEdits(device_nodes=nodes)
        return edits
