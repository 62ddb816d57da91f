"""The memory exchange of one daemon: what its client processes allocate, export, import and lose.

The exporter's daemon decides on every import. The importer's daemon requests it and states the channel that it
verified; the process gets a descriptor only after the decision. An allocation ends with the connection of its
process, an import ends with the daemon instance that exported it.
"""

from collections.abc import Callable
from typing import NamedTuple

from imex_sandbox.softimex import handles
from imex_sandbox.softimex.errors import CudaError, Malformed
from imex_sandbox.softimex.fabric import FABRIC_DIR_VARIABLE, Fabric
from imex_sandbox.softimex.frames import Message, number, text
from imex_sandbox.softimex.handles import Exports, FabricHandle, Import, Importer, Imports, Owner
from imex_sandbox.softimex.noderoot import Hardware
from imex_sandbox.softimex.peer import Peer
from imex_sandbox.softimex.peerstate import Identity
from imex_sandbox.softimex.rundir import PersistFile

MAX_BYTES = 2**48


class Grant(NamedTuple):
    """Memory for a process: its number in later requests, its length, and its descriptor."""

    number: int
    length: int
    descriptor: int


OnImported = Callable[[Grant | CudaError], None]


class Exchange:
    def __init__(
        self,
        identity: Identity,
        hardware: Callable[[], Hardware],
        fabric: Fabric | None,
        persist_file: PersistFile,
    ) -> None:
        self.ready = False
        self.peer: Callable[[int], Peer | None] = lambda index: None
        self._identity, self.hardware = identity, hardware
        self._fabric, self._persist_file = fabric, persist_file
        self._exports = Exports(identity)
        self._imports = Imports(self._notify_exporter)

    def allocate(self, owner: Owner, gpu: int, length: int) -> Grant:
        fabric, hardware = self._require_usable()
        if gpu >= hardware.gpus:
            raise CudaError(CudaError.INVALID_DEVICE, f"GPU {gpu} does not exist: the node has {hardware.gpus}")
        self._exports.require_capacity()
        name, descriptor = fabric.create(length)
        export = self._exports.add(owner.channel, name, length)
        owner.allocations[export.number] = name
        return Grant(export.number, length, descriptor)

    def export(self, owner: Owner, allocation: int) -> bytes:
        _, hardware = self._require_usable()
        _require_allocation(owner, allocation)
        return self._exports.handle(allocation, hardware.partition)

    def free(self, owner: Owner, allocation: int) -> None:
        _require_allocation(owner, allocation)
        self._exports.remove(allocation)
        if self._fabric:
            self._fabric.destroy(owner.allocations.pop(allocation))
        self._save_importers()

    def import_handle(self, owner: Owner, data: bytes, on_imported: OnImported) -> None:
        """Unless this raises, `on_imported` is called once: now, or when the exporter's daemon responds."""
        _, hardware = self._require_usable()
        handle = handles.parse(data)
        handles.check_partition(handle, hardware)
        importer = Importer(self._identity.node_index, owner.channel, hardware.partition)
        if handle.node_index == self._identity.node_index:
            export = self._exports.grant(data, importer, hardware)
            on_imported(self._open(owner, _import(handle, export.file, export.length)))
            return
        request = {"handle": data.hex(), "channel": importer.channel, "partition": importer.partition}
        self._exporter(handle).request(
            request, lambda response: on_imported(self._on_response(owner, handle, response))
        )

    def release(self, owner: Owner, imported: int) -> None:
        self._imports.remove(imported, owner)

    def owner_gone(self, owner: Owner) -> None:
        """Free and release everything: the process or its connection has ended."""
        for allocation in list(owner.allocations):
            self.free(owner, allocation)
        for imported in list(owner.imports):
            self.release(owner, imported)

    def respond(self, importer: Identity, request: Message) -> Message:
        """Decide on the import that another daemon requests for one of its processes."""
        channel, partition = number(request, "channel", 0, 2**20), text(request, "partition")
        try:
            data = bytes.fromhex(text(request, "handle"))
            export = self._exports.grant(data, Importer(importer.node_index, channel, partition), self.hardware())
        except CudaError as refusal:
            return {"code": refusal.code, "reason": refusal.reason}
        except ValueError:
            raise Malformed("the handle is not hexadecimal") from None
        # Saved before the response is sent: after a crash, every node that has the memory must be in the file.
        self._save_importers()
        return {"file": export.file, "length": export.length}

    def importer_released(self, importer: Identity, message: Message) -> None:
        self._exports.release(number(message, "release", 1, 2**62), importer.node_index)
        self._save_importers()

    def peer_lost(self, node_index: int) -> None:
        """Drop the imports from a node that is lost, and forget what that node imported."""
        for imported, owner in self._imports.from_node(node_index):
            dropped = self._imports.remove(imported, owner)
            if self._fabric:
                self._fabric.destroy_if_orphaned(dropped.file, dropped.instance)
            owner.notify_lost(imported, f"node {node_index}, which exported the memory, is lost or has restarted")
        self._exports.remove_importer(node_index)
        self._save_importers()

    def memory_info(self) -> tuple[int, int]:
        return self._require_usable()[0].memory_info()

    def close(self) -> None:
        self.ready = False
        if self._fabric:
            self._fabric.close()

    def _require_usable(self) -> tuple[Fabric, Hardware]:
        hardware = self.hardware()
        if not self.ready:
            raise _not_supported("the IMEX daemon of this node is not READY")
        if hardware.problem:
            raise _not_supported(hardware.problem)
        if self._fabric is None:
            raise _not_supported(f"the IMEX daemon of this node was started without {FABRIC_DIR_VARIABLE}")
        return self._fabric, hardware

    def _exporter(self, handle: FabricHandle) -> Peer:
        peer = self.peer(handle.node_index)
        if peer is None:
            raise CudaError(
                CudaError.INVALID_HANDLE,
                f"this IMEX domain has no node {handle.node_index}: the handle belongs to another domain",
            )
        if not peer.connected:
            raise _not_supported(f"the IMEX daemons are not connected: {peer} is {peer.state.connection.name}")
        return peer

    def _on_response(self, owner: Owner, handle: FabricHandle, response: Message) -> Grant | CudaError:
        if "failed" in response:
            return _not_supported(f"the import request to node {handle.node_index} failed: {response['failed']}")
        try:
            if "code" in response:
                return CudaError(number(response, "code", 0, 999), text(response, "reason", 1024))
            length, file = number(response, "length", 0, MAX_BYTES), text(response, "file")
        except Malformed as error:
            return _not_supported(f"the IMEX daemon of node {handle.node_index} sent an invalid response: {error}")
        try:
            return self._open(owner, _import(handle, file, length))
        except CudaError as error:
            # The exporter has recorded this node as an importer. The process may have ended meanwhile.
            self._notify_exporter(_import(handle, file, length))
            return error

    def _open(self, owner: Owner, imported: Import) -> Grant:
        fabric, _ = self._require_usable()
        self._imports.require_capacity(owner)
        descriptor = fabric.open(imported.file, imported.length)
        return Grant(self._imports.add(imported, owner), imported.length, descriptor)

    def _notify_exporter(self, imported: Import) -> None:
        """Tell the exporter's daemon that no process of this node has the import any more."""
        peer = self.peer(imported.node_index)
        if peer and peer.state.instance == imported.instance:
            peer.send({"release": imported.export})

    def _save_importers(self) -> None:
        self._persist_file.save(self._exports.importers())


def _import(handle: FabricHandle, file: str, length: int) -> Import:
    return Import(handle.node_index, handle.instance, handle.export, file, length)


def _require_allocation(owner: Owner, allocation: int) -> None:
    if allocation not in owner.allocations:
        raise CudaError(CudaError.INVALID_VALUE, f"this process has no allocation {allocation}")


def _not_supported(reason: str) -> CudaError:
    return CudaError(CudaError.NOT_SUPPORTED, reason)
