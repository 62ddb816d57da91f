"""What a kubelet knows of its claims after it was killed, in the real kubelet's own file format."""

import json
import zlib
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured, Retryable
from imex_dra.sandbox.kubelet.ledger import FILE, Device, DriverState, Entry, Ledger


def entry(name: str = "claim", uid: str = "u1") -> Entry:
    device = Device("pool", "seat", ["one"], ["v.io/c=x"])
    return Entry(uid, name, "ns", driver_state={"d.io": DriverState([device])})


def test_what_was_saved_is_known_again_but_not_as_prepared(tmp_path: Path) -> None:
    before = Ledger(tmp_path)
    before.mark_prepared(before.enter(entry(), "pod"))
    before.save()
    after = Ledger(tmp_path)
    found = after.get("ns", "claim")
    assert found is not None
    assert (found.claim_uid, list(found.pods), found.cdi_devices()) == ("u1", ["pod"], ["v.io/c=x"])
    assert not after.is_prepared(found)


def test_the_file_is_the_real_kubelets(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.enter(entry(), "pod")
    ledger.save()
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
                                "DeviceName": "seat",
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
    ("damage", "why"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b'{"Data": "\xff", "Checksum": 1}', "utf-8"),
        (b'{"Data": "{}", "Checksum": 1}', "its checksum is wrong"),
        (b'{"Data": "{}", "Checksum": %d}' % zlib.crc32(b"{}"), "missing required field `kind`"),
    ],
)
def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path: Path, damage: bytes, why: str) -> None:
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(Misconfigured, match=f"{FILE} can't be read: .*{why}.*; remove it if no pod runs on this"):
        Ledger(tmp_path)


def test_a_namesake_of_a_held_claim_must_wait(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.enter(entry(), "pod")
    with pytest.raises(Retryable, match="different UID u1 still exists"):
        ledger.enter(entry(uid="u2"), "other")


def test_only_the_request_that_is_named_counts() -> None:
    assert entry().cdi_devices("one") == ["v.io/c=x"]
    assert entry().cdi_devices("two") == []
