"""The claim checkpoint survives the kubelet, in the file format of the real kubelet."""

import json
import zlib
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured, Retryable
from imex_sandbox.kubelet.checkpoint import FILE, ClaimCheckpoint, ClaimInfo, Device, DriverState


def claim_info(name: str = "claim", uid: str = "u1") -> ClaimInfo:
    device = Device("pool", "channel-3", ["one"], ["v.io/c=x"])
    return ClaimInfo(uid, name, "ns", driver_state={"d.io": DriverState([device])})


def test_a_saved_claim_is_restored_but_not_as_prepared(tmp_path: Path) -> None:
    before = ClaimCheckpoint(tmp_path)
    before.mark_prepared(before.add(claim_info(), "pod"))
    before.save()
    after = ClaimCheckpoint(tmp_path)
    restored = after.get("ns", "claim")
    assert restored is not None
    assert (restored.claim_uid, list(restored.pods), restored.cdi_devices()) == ("u1", ["pod"], ["v.io/c=x"])
    assert not after.is_prepared(restored)


def test_the_file_has_the_format_of_the_real_kubelet(tmp_path: Path) -> None:
    checkpoint = ClaimCheckpoint(tmp_path)
    checkpoint.add(claim_info(), "pod")
    checkpoint.save()
    outer = json.loads((tmp_path / FILE).read_text())
    assert outer["Checksum"] == zlib.crc32(outer["Data"].encode())
    data = json.loads(outer["Data"])
    assert data == {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": [
            {
                "ClaimUID": "u1",
                "ClaimName": "claim",
                "Namespace": "ns",
                "PodUIDs": {"pod": {}},
                "DriverState": {
                    "d.io": {
                        "Devices": [
                            {
                                "PoolName": "pool",
                                "DeviceName": "channel-3",
                                "RequestNames": ["one"],
                                "CDIDeviceIDs": ["v.io/c=x"],
                            }
                        ]
                    }
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b'{"Data": "\xff", "Checksum": 1}', "utf-8"),
        (b'{"Data": "{}", "Checksum": 1}', "wrong checksum"),
        (b'{"Data": "{}", "Checksum": %d}' % zlib.crc32(b"{}"), "missing required field `kind`"),
    ],
)
def test_a_damaged_file_is_an_error_and_not_an_empty_checkpoint(
    tmp_path: Path, content: bytes, cause: str
) -> None:
    (tmp_path / FILE).write_bytes(content)
    message = f"cannot read the checkpoint .*{FILE}: .*{cause}.*; remove it if no pod runs on this node"
    with pytest.raises(Misconfigured, match=message):
        ClaimCheckpoint(tmp_path)


def test_a_claim_waits_until_an_older_claim_of_the_same_name_is_removed(tmp_path: Path) -> None:
    checkpoint = ClaimCheckpoint(tmp_path)
    checkpoint.add(claim_info(), "pod")
    with pytest.raises(Retryable, match="different UID u1 still exists"):
        checkpoint.add(claim_info(uid="u2"), "other")


def test_devices_are_selected_by_request() -> None:
    assert claim_info().cdi_devices("one") == ["v.io/c=x"]
    assert claim_info().cdi_devices("two") == []
