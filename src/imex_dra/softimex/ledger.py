"""What this daemon has exported, to whom, and who may import it.

The checks of the memory exchange are here and nowhere else, as pure decisions. A handle is good while its
export lives, in the instance that made it; importer and exporter need one partition and one channel number,
and the importer's number is what its own daemon saw proven, never what a process said.
"""

import hmac
import os
from typing import NamedTuple

from imex_dra.softimex import handles
from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.handles import Handle
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.noderoot import Hardware

MOST_EXPORTS = 16384


class Export(NamedTuple):
    number: int
    channel: int
    file: str
    length: int
    secret: bytes


class Importer(NamedTuple):
    """On whose behalf memory is asked for, in the words of the importer's daemon."""

    slot: int
    channel: int
    partition: str


class Ledger:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._key = os.urandom(32)
        self._last = 0
        self._exports: dict[int, Export] = {}
        self._held_by: dict[int, set[int]] = {}

    def require_room(self) -> None:
        if len(self._exports) >= MOST_EXPORTS:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"the node has {MOST_EXPORTS} allocations: free some")

    def add(self, channel: int, file: str, length: int) -> Export:
        self._last += 1
        export = Export(self._last, channel, file, length, os.urandom(16))
        self._exports[export.number] = export
        return export

    def remove(self, number: int) -> None:
        self._exports.pop(number, None)
        for slot in list(self._held_by):
            self.release(number, slot)

    def handle(self, number: int) -> bytes:
        export, identity = self._exports[number], self._identity
        named = Handle(identity.slot, identity.instance, export.number, export.length, export.secret)
        return handles.seal(named, self._key)

    def grant(self, data: bytes, importer: Importer, hardware: Hardware) -> Export:
        """Decide, and remember the importer; refuse by raising what a CUDA program would see."""
        export = self._genuine(data)
        permit(export, importer, hardware)
        if importer.slot != self._identity.slot:
            self._held_by.setdefault(importer.slot, set()).add(export.number)
        return export

    def release(self, number: int, slot: int) -> None:
        held = self._held_by.get(slot, set())
        held.discard(number)
        if not held:
            self.forget_importer(slot)

    def forget_importer(self, slot: int) -> None:
        self._held_by.pop(slot, None)

    def importers(self) -> set[int]:
        """The other nodes that hold something of ours."""
        return set(self._held_by)

    def _genuine(self, data: bytes) -> Export:
        handle = handles.read(data)
        if (handle.slot, handle.instance) != (self._identity.slot, self._identity.instance):
            raise CudaError(
                CudaError.INVALID_HANDLE,
                f"node {handle.slot} has restarted since it made this handle: export again",
            )
        if not handles.genuine(data, self._key):
            raise CudaError(CudaError.INVALID_HANDLE, f"node {handle.slot} did not make this handle")
        export = self._exports.get(handle.export)
        if export is None or not hmac.compare_digest(export.secret, handle.secret):
            raise CudaError(CudaError.INVALID_HANDLE, "what this handle stood for was freed: export again")
        return export


def permit(export: Export, importer: Importer, hardware: Hardware) -> None:
    if hardware.problem:
        raise CudaError(CudaError.NOT_SUPPORTED, f"on the exporter's node {hardware.problem}")
    if importer.partition != hardware.partition:
        raise CudaError(
            CudaError.NOT_SUPPORTED,
            f"the exporter is in NVLink partition {hardware.partition!r}, the importer in {importer.partition!r}",
        )
    if importer.channel != export.channel:
        raise CudaError(
            CudaError.NOT_PERMITTED,
            f"it was exported on IMEX channel {export.channel}, the importer has channel {importer.channel}",
        )
