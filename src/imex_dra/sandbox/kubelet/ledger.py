"""Which claims this node holds prepared, for which pods, with which devices; on disk before anybody is called.

The file is the real kubelet's `dra_manager_state`, in its format. A claim is entered before its driver is asked,
so that a kubelet that dies in between knows afterwards whom to ask to undo it.
"""

import zlib
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from imex_dra.base.errors import Misconfigured, Retryable
from imex_dra.base.files import write_atomically

log = structlog.get_logger()

FILE = "dra_manager_state"


class Device(Struct, rename="pascal"):
    pool_name: str
    device_name: str
    request_names: list[str] | None = None
    cdi_device_ids: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class DriverState(Struct, rename="pascal"):
    devices: list[Device] | None = None


class Entry(Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    claim_name: str
    namespace: str
    pods: dict[str, dict[str, str]] = msgspec.field(name="PodUIDs", default_factory=dict)
    """A set, as Go writes one."""
    driver_state: dict[str, DriverState] = {}

    def devices(self, request: str = "") -> list[tuple[str, Device]]:
        """Of one request, or of all, with their drivers."""
        every = [(driver, d) for driver, state in self.driver_state.items() for d in state.devices or ()]
        return [
            (driver, device)
            for driver, device in every
            if not (request and device.request_names) or request in (device.request_names or ())
        ]

    def cdi_devices(self, request: str = "") -> list[str]:
        return [name for _, device in self.devices(request) for name in device.cdi_device_ids or ()]


class _Data(Struct):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    entries: list[Entry] | None = msgspec.field(name="ClaimInfoStateList", default=None)


class _Checkpoint(Struct, rename="pascal"):
    data: str
    checksum: int


class Ledger:
    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._entries = {(entry.namespace, entry.claim_name): entry for entry in _read(self._file)}
        self._prepared: set[str] = set()
        """UIDs that were prepared since this kubelet started: after a start, drivers are asked again."""

    def get(self, namespace: str, name: str) -> Entry | None:
        return self._entries.get((namespace, name))

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def enter(self, entry: Entry, pod: str) -> Entry:
        key = entry.namespace, entry.claim_name
        known = self._entries.setdefault(key, entry)
        if known.claim_uid != entry.claim_uid:
            raise Retryable(
                f"old ResourceClaim with same name {entry.claim_name} and different UID {known.claim_uid} still "
                "exists (previous pod force-deleted?!)"
            )
        known.pods[pod] = {}
        return known

    def is_prepared(self, entry: Entry) -> bool:
        return entry.claim_uid in self._prepared

    def mark_prepared(self, entry: Entry) -> None:
        self._prepared.add(entry.claim_uid)

    def forget(self, entry: Entry) -> None:
        self._entries.pop((entry.namespace, entry.claim_name), None)
        self._prepared.discard(entry.claim_uid)

    def save(self) -> None:
        data = _Data("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1", self.entries())
        encoded = msgspec.json.encode(data)
        checkpoint = _Checkpoint(encoded.decode(), zlib.crc32(encoded))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(checkpoint), mode=0o600)


def _read(file: Path) -> list[Entry]:
    try:
        checkpoint = msgspec.json.decode(file.read_bytes(), type=_Checkpoint)
        if zlib.crc32(checkpoint.data.encode()) != checkpoint.checksum:
            raise msgspec.DecodeError("its checksum is wrong")
        return msgspec.json.decode(checkpoint.data, type=_Data).entries or []
    except FileNotFoundError:
        return []
    except ValueError as error:  # of msgspec's own, or because it is no UTF-8
        raise Misconfigured(f"{file} can't be read: {error}; remove it if no pod runs on this node") from error
