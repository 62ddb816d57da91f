"""The 64 bytes that stand for exported memory, as CUmemFabricHandle does.

Anybody may carry a handle around, so it proves nothing by itself: the daemon that made it seals it with a key
that lives as long as the daemon's instance, and checks the seal, the secret and the export when it comes back.
"""

import hmac
import struct
from typing import NamedTuple

from imex_dra.softimex.errors import CudaError

SIZE = 64
_LAYOUT = struct.Struct(">4sBBH8sQQ16s")
_MAGIC = b"SIMX"
_VERSION = 1
_SEAL = 16


class Handle(NamedTuple):
    slot: int
    instance: str
    export: int
    length: int
    secret: bytes


def seal(handle: Handle, key: bytes) -> bytes:
    slot, instance, export, length, secret = handle
    body = _LAYOUT.pack(_MAGIC, _VERSION, 0, slot, bytes.fromhex(instance), export, length, secret)
    return body + _mac(body, key)


def read(data: bytes) -> Handle:
    """What a handle says; whether it is true, only its exporter knows."""
    if len(data) != SIZE:
        raise CudaError(CudaError.INVALID_HANDLE, f"a handle has {SIZE} bytes, this has {len(data)}")
    magic, version, _, slot, instance, export, length, secret = _LAYOUT.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CudaError(CudaError.INVALID_HANDLE, "these bytes are no handle of soft IMEX")
    return Handle(slot, instance.hex(), export, length, secret)


def genuine(data: bytes, key: bytes) -> bool:
    return hmac.compare_digest(data[-_SEAL:], _mac(data[:-_SEAL], key))


def _mac(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")[:_SEAL]
