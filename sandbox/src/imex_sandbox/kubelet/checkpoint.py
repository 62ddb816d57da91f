"""The kubelet's checkpoint of its claims: `dra_manager_state`, in the format of the real kubelet.

A claim is saved before its driver is called, so that a kubelet that is killed during the call still knows which
driver to ask for NodeUnprepareResources.
"""

import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured, Retryable
from imex_dra.base.files import write_atomically

FILE = "dra_manager_state"


class Device(Struct, rename="pascal"):
    pool_name: str
    device_name: str
    request_names: list[str] | None = None
    cdi_device_ids: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class DriverState(Struct, rename="pascal"):
    devices: list[Device] | None = None


class ClaimInfo(Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    claim_name: str
    namespace: str
    pods: dict[str, dict[str, str]] = msgspec.field(name="PodUIDs", default_factory=dict)
    """A set, as Go encodes it."""
    driver_state: dict[str, DriverState] = {}

    def devices(self, request: str = "") -> list[tuple[str, Device]]:
        """(driver, device) for all requests of the claim, or for one."""
        devices = [(driver, d) for driver, state in self.driver_state.items() for d in state.devices or ()]
        return [
            (driver, device)
            for driver, device in devices
            if not (request and device.request_names) or request in (device.request_names or ())
        ]

    def cdi_devices(self, request: str = "") -> list[str]:
        return [name for _, device in self.devices(request) for name in device.cdi_device_ids or ()]


class _Data(Struct):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    claims: list[ClaimInfo] | None = msgspec.field(name="ClaimInfoStateList", default=None)


class _File(Struct, rename="pascal"):
    data: str
    checksum: int


class ClaimCheckpoint:
    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._claims = {(claim.namespace, claim.claim_name): claim for claim in _read(self._file)}
        self._prepared: set[str] = set()
        """UIDs of the claims that this kubelet prepared. Not saved: after a restart drivers are called again."""

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        return self._claims.get((namespace, name))

    def claims(self) -> list[ClaimInfo]:
        return list(self._claims.values())

    def add(self, claim: ClaimInfo, pod: str) -> ClaimInfo:
        """Adds the pod to the claim, and the claim if it is new. Returns the stored claim."""
        known = self._claims.setdefault((claim.namespace, claim.claim_name), claim)
        if known.claim_uid != claim.claim_uid:
            raise Retryable(
                f"old ResourceClaim with same name {claim.claim_name} and different UID {known.claim_uid} still "
                "exists (previous pod force-deleted?!)"
            )
        known.pods[pod] = {}
        return known

    def is_prepared(self, claim: ClaimInfo) -> bool:
        return claim.claim_uid in self._prepared

    def mark_prepared(self, claim: ClaimInfo) -> None:
        self._prepared.add(claim.claim_uid)

    def remove(self, claim: ClaimInfo) -> None:
        self._claims.pop((claim.namespace, claim.claim_name), None)
        self._prepared.discard(claim.claim_uid)

    def save(self) -> None:
        encoded = msgspec.json.encode(
            _Data("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1", list(self._claims.values()))
        )
        content = msgspec.json.encode(_File(encoded.decode(), zlib.crc32(encoded)))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, content, mode=0o600)


def _read(file: Path) -> list[ClaimInfo]:
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_File)
        if zlib.crc32(content.data.encode()) != content.checksum:
            raise msgspec.DecodeError("wrong checksum")
        return msgspec.json.decode(content.data, type=_Data).claims or []
    except FileNotFoundError:
        return []
    except ValueError as error:  # includes msgspec's errors and invalid UTF-8
        raise Misconfigured(
            f"cannot read the checkpoint {file}: {error}; remove it if no pod runs on this node"
        ) from error
