"""The memory exchange of one daemon: what its processes allocate, export, import and lose.

The exporter's daemon decides on every import. The importer's daemon asks it over the mesh and states the
channel that it saw proven; a process gets nothing but a descriptor, after the decision. What a process
allocated lives no longer than its connection, and what it imported no longer than the instance it came from.
"""

from collections.abc import Callable
from typing import NamedTuple

from imex_dra.softimex import handles
from imex_dra.softimex.errors import CudaError, Malformed
from imex_dra.softimex.fabric import VARIABLE, Fabric
from imex_dra.softimex.frames import Message, number, text
from imex_dra.softimex.handles import Handle
from imex_dra.softimex.holdings import Holdings, Import, Owner
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.ledger import Importer, Ledger
from imex_dra.softimex.noderoot import Hardware
from imex_dra.softimex.peer import Peer
from imex_dra.softimex.persistence import Persistence

MOST_BYTES = 2**48


class Grant(NamedTuple):
    """Memory for a process: its number in later requests, and the descriptor."""

    number: int
    length: int
    descriptor: int


Done = Callable[[Grant | CudaError], None]


class Exchange:
    def __init__(
        self,
        identity: Identity,
        hardware: Callable[[], Hardware],
        fabric: Fabric | None,
        persistence: Persistence,
    ) -> None:
        self.ready = False
        self.peer: Callable[[int], Peer | None] = lambda slot: None
        self._identity, self.hardware = identity, hardware
        self._fabric, self._persistence = fabric, persistence
        self._ledger = Ledger(identity)
        self._holdings = Holdings(self._give_back)

    def allocate(self, owner: Owner, gpu: int, length: int) -> Grant:
        fabric, hardware = self._usable()
        if gpu >= hardware.gpus:
            raise CudaError(CudaError.INVALID_DEVICE, f"there is no GPU {gpu}: the node has {hardware.gpus}")
        self._ledger.require_room()
        name, descriptor = fabric.create(length)
        export = self._ledger.add(owner.channel, name, length)
        owner.allocations[export.number] = name
        return Grant(export.number, length, descriptor)

    def export(self, owner: Owner, allocation: int) -> bytes:
        self._usable()
        _require(owner, allocation)
        return self._ledger.handle(allocation)

    def free(self, owner: Owner, allocation: int) -> None:
        _require(owner, allocation)
        self._ledger.remove(allocation)
        if self._fabric:
            self._fabric.bury(owner.allocations.pop(allocation))
        self._remember_importers()

    def attach(self, owner: Owner, data: bytes, done: Done) -> None:
        """Import; unless it raises, `done` is called once, now or when the exporter's daemon has answered."""
        _, hardware = self._usable()
        handle = handles.read(data)
        importer = Importer(self._identity.slot, owner.channel, hardware.partition)
        if handle.slot == self._identity.slot:
            export = self._ledger.grant(data, importer, hardware)
            done(self._take(owner, _imported(handle, export.file, export.length)))
            return
        question = {"handle": data.hex(), "channel": importer.channel, "partition": importer.partition}
        self._exporter(handle).ask(question, lambda answer: done(self._answered(owner, handle, answer)))

    def release(self, owner: Owner, imported: int) -> None:
        self._holdings.remove(imported, owner)

    def gone(self, owner: Owner) -> None:
        """The process, or its connection, is no more."""
        for allocation in list(owner.allocations):
            self.free(owner, allocation)
        for imported in list(owner.imports):
            self.release(owner, imported)

    def asked(self, asker: Identity, question: Message) -> Message:
        """Another daemon asks for one of its processes."""
        channel, partition = number(question, "channel", 0, 2**20), text(question, "partition")
        try:
            data = bytes.fromhex(text(question, "handle"))
            export = self._ledger.grant(data, Importer(asker.slot, channel, partition), self.hardware())
        except CudaError as refusal:
            return {"code": refusal.code, "why": refusal.why}
        except ValueError:
            raise Malformed("a handle that is not hexadecimal") from None
        self._remember_importers()
        return {"file": export.file, "length": export.length}

    def released(self, asker: Identity, message: Message) -> None:
        self._ledger.release(number(message, "release", 1, 2**62), asker.slot)
        self._remember_importers()

    def lost(self, slot: int) -> None:
        """What was imported from a node is gone, and what it imported from us it has no more."""
        for imported, owner in self._holdings.from_slot(slot):
            dropped = self._holdings.remove(imported, owner)
            if self._fabric:
                self._fabric.bury_if_orphaned(dropped.file, dropped.instance)
            owner.tell_lost(imported, f"node {slot}, which exported it, is lost or has restarted")
        self._ledger.forget_importer(slot)
        self._remember_importers()

    def free_bytes(self) -> tuple[int, int]:
        return self._usable()[0].free_bytes()

    def close(self) -> None:
        self.ready = False
        if self._fabric:
            self._fabric.close()

    def _usable(self) -> tuple[Fabric, Hardware]:
        hardware = self.hardware()
        if not self.ready:
            raise _unsupported("the IMEX daemon of this node is not READY")
        if hardware.problem:
            raise _unsupported(hardware.problem)
        if self._fabric is None:
            raise _unsupported(f"the IMEX daemon of this node was started without {VARIABLE}")
        return self._fabric, hardware

    def _exporter(self, handle: Handle) -> Peer:
        peer = self.peer(handle.slot)
        if peer is None:
            raise _invalid(f"this IMEX domain has no node {handle.slot}: the handle is of another domain")
        if not peer.connected:
            raise _unsupported(f"the IMEX daemons are not connected: {peer} is {peer.link.state.name}")
        return peer

    def _answered(self, owner: Owner, handle: Handle, answer: Message) -> Grant | CudaError:
        if "lost" in answer:
            return _unsupported(f"the IMEX daemon of node {handle.slot} does not answer: {answer['lost']}")
        try:
            if "code" in answer:
                return CudaError(number(answer, "code", 0, 999), text(answer, "why", 1024))
            length, file = number(answer, "length", 0, MOST_BYTES), text(answer, "file")
        except Malformed as error:
            return _unsupported(f"the IMEX daemon of node {handle.slot} answered nonsense: {error}")
        try:
            return self._take(owner, _imported(handle, file, length))
        except CudaError as error:
            self._give_back(_imported(handle, file, length))
            return error

    def _take(self, owner: Owner, imported: Import) -> Grant:
        fabric, _ = self._usable()
        self._holdings.require_room(owner)
        descriptor = fabric.open(imported.file, imported.length)
        return Grant(self._holdings.add(imported, owner), imported.length, descriptor)

    def _give_back(self, imported: Import) -> None:
        """Tell the exporter that nobody on this node holds it any more."""
        peer = self.peer(imported.slot)
        if peer and peer.link.instance == imported.instance:
            peer.tell({"release": imported.export})

    def _remember_importers(self) -> None:
        self._persistence.save(self._ledger.importers())


def _imported(handle: Handle, file: str, length: int) -> Import:
    return Import(handle.slot, handle.instance, handle.export, file, length)


def _require(owner: Owner, allocation: int) -> None:
    if allocation not in owner.allocations:
        raise CudaError(CudaError.INVALID_VALUE, f"there is no allocation {allocation} of this process")


def _unsupported(why: str) -> CudaError:
    return CudaError(CudaError.NOT_SUPPORTED, why)


def _invalid(why: str) -> CudaError:
    return CudaError(CudaError.INVALID_HANDLE, why)
