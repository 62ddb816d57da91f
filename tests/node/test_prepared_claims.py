"""Prepared claims: the checkpoint and the CDI specs change together."""

import hashlib

import msgspec
import pytest

from imex_dra.base.errors import Misconfigured, NotYet
from imex_dra.node.checkpoint import VERSION, Checkpoint, PreparedClaim
from imex_dra.node.prepared import StaleGrant
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.snapshots import OTHER_PARTITION, PARTITION


def test_a_prepared_claim_has_a_spec_with_its_device_and_environment(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))
    spec = disk.spec("c1")
    (device,) = spec["devices"]
    assert (spec["cdiVersion"], spec["kind"], device["name"]) == ("0.6.0", "imex-dra.io/channel", "c1")
    edits = device["containerEdits"]
    assert edits["deviceNodes"] == [
        {
            "path": "/dev/nvidia-caps-imex-channels/channel7",
            "major": 234,
            "minor": 7,
            "type": "c",
            "fileMode": 0o666,
            "permissions": "rw",
        }
    ]
    assert {"COMPUTE_DOMAIN_NAME=job", "COMPUTE_DOMAIN_UUID=uid-job", "COMPUTE_DOMAIN_CHANNEL=7"} <= set(
        edits["env"]
    )
    assert disk.held_channels() == {"c1": 7}


def test_a_claim_without_a_channel_has_an_environment_and_no_device(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=-1, partition=""))
    assert disk.container_edits("c1") == {"env": ["COMPUTE_DOMAIN_NAME=job", "COMPUTE_DOMAIN_UUID=uid-job"]}


def test_a_claim_of_all_channels_has_every_device_and_its_own_channel_first(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=3, all_channels=True, channel_count=8))
    edits = disk.container_edits("c1")
    assert [node.get("minor", 0) for node in edits["deviceNodes"]] == [3, 0, 1, 2, 4, 5, 6, 7]
    assert len(edits["mounts"]) == 2


def test_adding_a_claim_twice_does_not_rewrite_its_spec(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    before = disk.spec("c1"), disk.spec_path("c1").stat().st_ino
    disk.add(prepared_claim("c1"))
    assert (disk.spec("c1"), disk.spec_path("c1").stat().st_ino) == before
    assert disk.held_channels() == {"c1": 7}


def test_a_channel_held_by_another_computedomain_is_refused_and_the_error_names_the_holder(
    disk: NodeDisk,
) -> None:
    disk.add(prepared_claim("c1", channel=7))
    with pytest.raises(NotYet) as refused:
        disk.add(prepared_claim("c2", channel=7, domain="other"))
    assert str(refused.value) == (
        "channel 7 of NVLink partition 7b968a6d.1 is still held on node n1 by claim team/claim-c1 of ComputeDomain"
        " team/job; delete the pod that uses that claim"
    )
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}
    disk.remove("c1")
    disk.add(prepared_claim("c2", channel=7, domain="other"), unprepare_sequence=1)
    assert disk.held_channels() == disk.spec_channels() == {"c2": 7}


def test_a_channel_number_is_one_device_in_whichever_partition_it_was_assigned(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7, partition="another"))
    with pytest.raises(NotYet, match="channel 7 of NVLink partition another is still held on node n1"):
        disk.add(prepared_claim("c2", channel=7, domain="other"))


@pytest.mark.parametrize(
    "second",
    [
        prepared_claim("c2", channel=7),
        prepared_claim("c2", channel=8, domain="other"),
        prepared_claim("c2", channel=7, domain="other", boot_id="boot-2"),
    ],
    ids=["same ComputeDomain", "another channel", "after a reboot"],
)
def test_claims_that_do_not_conflict_are_prepared_side_by_side(disk: NodeDisk, second: PreparedClaim) -> None:
    disk.add(prepared_claim("c1", channel=7))
    disk.add(second)
    assert disk.held_channels().keys() == disk.spec_channels().keys() == {"c1", "c2"}


def test_a_claim_that_another_program_has_prepared_meanwhile_keeps_its_channel(disk: NodeDisk) -> None:
    first = prepared_claim("c1", channel=7)
    disk.add(first)
    claims = disk.prepared_claims()
    assert claims.add(prepared_claim("c1", channel=8), claims.read()) == first
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}
    rebooted = prepared_claim("c1", channel=8, boot_id="boot-2")
    assert claims.add(rebooted, claims.read()) == rebooted
    assert disk.held_channels() == disk.spec_channels() == {"c1": 8}


def test_claims_without_a_channel_never_conflict(disk: NodeDisk) -> None:
    for uid, domain in (("c1", "job"), ("c2", "other")):
        disk.add(prepared_claim(uid, channel=-1, partition="", domain=domain))
    assert disk.held_channels() == disk.spec_channels() == {"c1": -1, "c2": -1}


def test_a_claim_that_was_unprepared_during_its_prepare_is_not_added(disk: NodeDisk) -> None:
    sequence = disk.prepared_claims().read().unprepare_sequence
    disk.remove("c1")
    with pytest.raises(NotYet, match="claim team/claim-c1 was unprepared while it was being prepared"):
        disk.add(prepared_claim("c1"), unprepare_sequence=sequence)
    assert disk.held_channels() == disk.spec_channels() == {}


def test_the_spec_of_an_unprepared_claim_is_not_written_again(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    disk.remove("c1")
    with pytest.raises(NotYet, match="was unprepared while it was being prepared"):
        disk.prepared_claims().rewrite_spec(prepared_claim("c1"))
    assert disk.held_channels() == disk.spec_channels() == {}


def test_after_a_reload_of_the_gpu_driver_the_spec_gets_the_new_major(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    disk.root.load_driver(99)
    disk.prepared_claims().rewrite_spec(prepared_claim("c1"))
    assert disk.container_edits("c1")["deviceNodes"][0]["major"] == 99
    assert disk.held_channels() == {"c1": 7}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"cdiVersion":"0.6.0","kind":"x","devices":[]}', None])
def test_a_corrupt_or_missing_spec_is_written_again(disk: NodeDisk, content: bytes | None) -> None:
    disk.add(prepared_claim("c1"))
    before = disk.spec("c1")
    disk.spec_path("c1").unlink()
    if content is not None:
        disk.spec_path("c1").write_bytes(content)
    disk.prepared_claims().rewrite_spec(prepared_claim("c1"))
    assert disk.spec("c1") == before


def test_without_a_gpu_driver_prepare_fails_and_unprepare_succeeds(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    (disk.root.path / "proc/devices").unlink()
    with pytest.raises(Misconfigured, match="proc/devices cannot be read"):
        disk.add(prepared_claim("c2"))
    disk.remove("c1")
    assert disk.held_channels() == disk.spec_channels() == {}


def test_unprepare_of_an_unknown_claim_succeeds_and_is_counted(disk: NodeDisk) -> None:
    disk.remove("c1")
    disk.remove("c1")
    assert disk.load_checkpoint().unprepare_sequence == 2


def checkpoint_of_another_version() -> bytes:
    payload = '{"claims":{}}'
    checksum = hashlib.sha256(payload.encode()).hexdigest()
    return msgspec.json.encode({"version": VERSION + 1, "checksum": checksum, "payload": payload})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"version":1,"checksum":"0","payload":"{}"}', checkpoint_of_another_version()],
    ids=["empty", "truncated", "not UTF-8", "wrong checksum", "another version"],
)
def test_an_unreadable_checkpoint_is_backed_up_and_rebuilt_from_the_specs(disk: NodeDisk, content: bytes) -> None:
    disk.add(prepared_claim("c1"))
    disk.add(prepared_claim("c2", channel=-1, partition=""))
    before = disk.load_checkpoint()
    disk.checkpoint.write_bytes(content)
    rebuilt = disk.prepared_claims().read()
    assert rebuilt == Checkpoint(before.claims, file_id=rebuilt.file_id) == disk.load_checkpoint()
    assert rebuilt.file_id not in ("", before.file_id)
    assert disk.checkpoint.with_suffix(".unreadable").read_bytes() == content
    with pytest.raises(NotYet, match="still held"):
        disk.add(prepared_claim("c3", domain="other"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"cdiVersion":"0.6.0","kind":"x","devices":[]}',
        b'{"cdiVersion":"0.6.0","kind":"x","devices":[],"annotations":{"imex-dra.io/prepared-claim":"{"}}',
    ],
    ids=["empty", "without annotation", "truncated annotation"],
)
def test_a_spec_without_a_valid_annotation_does_not_stop_the_rebuild(disk: NodeDisk, content: bytes) -> None:
    disk.add(prepared_claim("c1"))
    disk.spec_path("c9").write_bytes(content)
    disk.checkpoint.write_bytes(b"")
    assert disk.prepared_claims().read().claims.keys() == {"c1"}


def test_orphaned_specs_and_temporary_files_are_removed_and_files_of_other_drivers_are_kept(
    disk: NodeDisk,
) -> None:
    disk.add(prepared_claim("c1"))
    disk.spec_path("orphan").write_text("{}")
    (disk.cdi / ".imex-dra.io-channel_c1.json.x7_gk2aa").write_text("{")
    (disk.cdi / "nvidia.com-gpu.json").write_text("of another driver")
    (disk.checkpoint.parent / ".imex-dra.json.abcdefgh").write_text("{")
    (disk.checkpoint.parent / "checkpoint.json").write_text("of NVIDIA's driver")
    disk.prepared_claims().remove_orphans()
    assert disk.files() == {
        "imex-dra.io-channel_c1.json",
        "nvidia.com-gpu.json",
        "imex-dra.json",
        "imex-dra.lock",
        "checkpoint.json",
    }


def test_a_grant_from_before_the_fence_is_not_committed(disk: NodeDisk) -> None:
    disk.prepared_claims().raise_fence(PARTITION, 4)
    with pytest.raises(StaleGrant):
        disk.add(prepared_claim("c1"), epoch=3)
    assert disk.held_channels() == disk.spec_channels() == {}
    disk.add(prepared_claim("c1"), epoch=4)
    assert disk.held_channels() == {"c1": 7}


def test_a_claim_that_shares_a_held_channel_may_use_a_grant_from_before_the_fence(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"), epoch=0)
    assert disk.prepared_claims().raise_fence(PARTITION, 4).claims.keys() == {"c1"}
    disk.add(prepared_claim("c2"), epoch=3)
    disk.remove("c1")
    disk.remove("c2")
    with pytest.raises(StaleGrant):
        disk.add(prepared_claim("c3"), unprepare_sequence=2, epoch=3)


def test_after_a_fence_in_another_partition_no_grant_of_the_former_partition_is_committed(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    disk.prepared_claims().raise_fence(OTHER_PARTITION, 0)
    with pytest.raises(StaleGrant):
        disk.add(prepared_claim("c2"))


def test_a_grant_that_was_decided_with_a_lost_checkpoint_is_not_committed(disk: NodeDisk) -> None:
    disk.prepared_claims().raise_fence(PARTITION, 4)
    read_before = disk.prepared_claims().read()
    disk.checkpoint.write_bytes(b"corrupt")
    with pytest.raises(StaleGrant):
        disk.prepared_claims().add(prepared_claim("c1"), read_before, 4)


def test_a_fence_is_never_lowered_and_is_written_only_once(disk: NodeDisk) -> None:
    disk.prepared_claims().raise_fence(PARTITION, 4)
    written = disk.checkpoint.stat().st_ino
    disk.prepared_claims().raise_fence(PARTITION, 3)
    assert disk.checkpoint.stat().st_ino == written
    assert disk.load_checkpoint().fence(PARTITION) == 4
