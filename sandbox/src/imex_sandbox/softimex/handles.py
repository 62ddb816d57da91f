"""Fabric handles, the exports that they refer to, and the imports of this node.

A fabric handle has 64 bytes, as CUmemFabricHandle does. Any process may pass it on, so it is not a permission: the
exporting daemon authenticates it with a key that only its current instance has, and decides on every import. All
access checks of the memory exchange are in this module, as pure decisions.

Indexes of nodes are those of one IMEX domain, so the same index means another node in another NVLink partition.
A handle therefore carries a digest of its partition: the importer's daemon refuses handles of other partitions
before it asks any node.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.noderoot import Hardware
from imex_sandbox.softimex.peerstate import Identity

HANDLE_SIZE = 64
MAX_EXPORTS = 16384
MAX_IMPORTS = 16384
_LAYOUT = struct.Struct(">4sBBH8sIQ12s8s")
_MAGIC = b"SIMX"
_VERSION = 2
_MAC_SIZE = 16
_SECRET_SIZE = 12
_DIGEST_SIZE = 8


class FabricHandle(NamedTuple):
    node_index: int
    instance: str
    export: int
    length: int
    secret: bytes
    partition: bytes
    """Its digest."""


def digest(partition: str) -> bytes:
    return hashlib.sha256(partition.encode()).digest()[:_DIGEST_SIZE]


def sign(handle: FabricHandle, key: bytes) -> bytes:
    node_index, instance, *rest = handle
    body = _LAYOUT.pack(_MAGIC, _VERSION, 0, node_index, bytes.fromhex(instance), *rest)
    return body + _mac(body, key)


def parse(data: bytes) -> FabricHandle:
    """The content of a handle. Only the exporting daemon can verify it."""
    if len(data) != HANDLE_SIZE:
        raise _invalid(f"a fabric handle has {HANDLE_SIZE} bytes, this one has {len(data)}")
    magic, version, _, node_index, instance, *rest = _LAYOUT.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise _invalid("this is not a fabric handle of soft IMEX")
    return FabricHandle(node_index, instance.hex(), *rest)


def is_authentic(data: bytes, key: bytes) -> bool:
    return hmac.compare_digest(data[-_MAC_SIZE:], _mac(data[:-_MAC_SIZE], key))


def _mac(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")[:_MAC_SIZE]


class Export(NamedTuple):
    number: int
    channel: int
    file: str
    length: int
    secret: bytes


class Importer(NamedTuple):
    """The process that requests an import, as its own daemon describes it: the daemon verified the channel."""

    node_index: int
    channel: int
    partition: str


class Exports:
    """Allocations of this node that can be exported, by number, and the nodes that imported them."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._key = os.urandom(32)
        self._last = 0
        self._exports: dict[int, Export] = {}
        self._imported_by: dict[int, set[int]] = {}

    def require_capacity(self) -> None:
        if len(self._exports) >= MAX_EXPORTS:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"the node has {MAX_EXPORTS} allocations: free some")

    def add(self, channel: int, file: str, length: int) -> Export:
        self._last += 1
        export = Export(self._last, channel, file, length, os.urandom(_SECRET_SIZE))
        self._exports[export.number] = export
        return export

    def remove(self, number: int) -> None:
        self._exports.pop(number, None)
        for node_index in list(self._imported_by):
            self.release(number, node_index)

    def handle(self, number: int, partition: str) -> bytes:
        export, identity = self._exports[number], self._identity
        memory = (export.number, export.length, export.secret)
        return sign(FabricHandle(identity.node_index, identity.instance, *memory, digest(partition)), self._key)

    def grant(self, data: bytes, importer: Importer, hardware: Hardware) -> Export:
        """Decide on an import and record the importing node. Raises the error that a CUDA program would see."""
        export = self._find(data)
        check_access(export, importer, hardware)
        if importer.node_index != self._identity.node_index:
            self._imported_by.setdefault(importer.node_index, set()).add(export.number)
        return export

    def release(self, number: int, node_index: int) -> None:
        imported = self._imported_by.get(node_index, set())
        imported.discard(number)
        if not imported:
            self.remove_importer(node_index)

    def remove_importer(self, node_index: int) -> None:
        self._imported_by.pop(node_index, None)

    def importers(self) -> set[int]:
        """The other nodes that imported memory of this node."""
        return set(self._imported_by)

    def _find(self, data: bytes) -> Export:
        handle = parse(data)
        if (handle.node_index, handle.instance) != (self._identity.node_index, self._identity.instance):
            raise _invalid(f"node {handle.node_index} has restarted since it made this handle: export again")
        if not is_authentic(data, self._key):
            raise _invalid(f"node {handle.node_index} did not make this handle")
        export = self._exports.get(handle.export)
        if export is None or not hmac.compare_digest(export.secret, handle.secret):
            raise _invalid("the memory of this handle was freed: export again")
        return export


def check_partition(handle: FabricHandle, importer: Hardware) -> None:
    if handle.partition != digest(importer.partition):
        raise CudaError(
            CudaError.NOT_SUPPORTED,
            f"the memory was exported in another NVLink partition; the importer is in {importer.partition!r}, and"
            " NVLink connects only nodes of one partition",
        )


def check_access(export: Export, importer: Importer, hardware: Hardware) -> None:
    if hardware.problem:
        raise CudaError(CudaError.NOT_SUPPORTED, f"on the exporting node: {hardware.problem}")
    if importer.partition != hardware.partition:
        raise CudaError(
            CudaError.NOT_SUPPORTED,
            f"the exporter is in NVLink partition {hardware.partition!r}, the importer in {importer.partition!r}",
        )
    if importer.channel != export.channel:
        raise CudaError(
            CudaError.NOT_PERMITTED,
            f"the memory was exported on IMEX channel {export.channel}, the importer has channel"
            f" {importer.channel}",
        )


class Owner(Protocol):
    """A client process that owns allocations and imports until its connection ends."""

    channel: int
    alive: bool
    allocations: dict[int, str]
    imports: set[int]

    def notify_lost(self, number: int, reason: str) -> None: ...


class Import(NamedTuple):
    node_index: int
    instance: str
    export: int
    file: str
    length: int


class Imports:
    """Imports by number. `on_last_release` is called when no process of this node has the import any more."""

    def __init__(self, on_last_release: Callable[[Import], None]) -> None:
        self._on_last_release = on_last_release
        self._last = 0
        self._imports: dict[int, tuple[Import, Owner]] = {}
        self._references: dict[Import, int] = {}

    def require_capacity(self, owner: Owner) -> None:
        if not owner.alive:
            raise CudaError(CudaError.INVALID_VALUE, "the process has ended")
        if len(self._imports) >= MAX_IMPORTS:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"the node has {MAX_IMPORTS} imports: release some")

    def add(self, imported: Import, owner: Owner) -> int:
        self._last += 1
        self._imports[self._last] = (imported, owner)
        self._references[imported] = self._references.get(imported, 0) + 1
        owner.imports.add(self._last)
        return self._last

    def remove(self, number: int, owner: Owner) -> Import:
        if number not in owner.imports:
            raise CudaError(CudaError.INVALID_VALUE, f"this process has no import {number}")
        imported, _ = self._imports.pop(number)
        owner.imports.discard(number)
        self._references[imported] -= 1
        if not self._references[imported]:
            del self._references[imported]
            self._on_last_release(imported)
        return imported

    def from_node(self, node_index: int) -> list[tuple[int, Owner]]:
        return [
            (number, owner)
            for number, (imported, owner) in self._imports.items()
            if imported.node_index == node_index
        ]


def _invalid(reason: str) -> CudaError:
    return CudaError(CudaError.INVALID_HANDLE, reason)
