"""Full and failing disks: unprepare goes on, nothing leaks, and every error is one that is retried."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from subprocess import PIPE

import pytest
import structlog
from msgspec import structs

from imex_dra.base.errors import NotYet
from imex_dra.node.checkpoint import Checkpoint, CheckpointFile
from imex_dra.node.prepared import DiskError, PreparedClaims
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.snapshots import BOOT_ID, PARTITION
from tests.node.tmpfs import Tmpfs, mounted_tmpfs


@pytest.fixture
def tmpfs(disk: NodeDisk) -> Iterator[Tmpfs]:
    """Holds the checkpoint; the CDI directory is often on another file system, and here too."""
    with mounted_tmpfs(disk.checkpoint.parent) as mounted:
        yield mounted


@pytest.fixture
def cdi_tmpfs(disk: NodeDisk) -> Iterator[Tmpfs]:
    with mounted_tmpfs(disk.cdi) as mounted:
        yield mounted


def test_a_claim_is_unprepared_on_a_full_disk(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    for uid in ("c1", "c2", "c3"):
        disk.add(prepared_claim(uid))
    tmpfs.fill()
    after = disk.prepared_claims().remove("c2")
    assert after == disk.load_checkpoint()
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7, "c3": 7}
    tmpfs.free()
    disk.add(prepared_claim("c4"))
    assert disk.held_channels().keys() == {"c1", "c3", "c4"}


def test_an_unprepare_on_a_full_disk_stops_a_prepare_that_is_under_way(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    disk.add(prepared_claim("c1"))
    began = disk.prepared_claims().read()
    tmpfs.fill()
    disk.remove("c2")
    tmpfs.free()
    with pytest.raises(NotYet, match="was unprepared while it was being prepared"):
        disk.prepared_claims().add(prepared_claim("c2"), began, 1000)


def test_an_epoch_is_acknowledged_on_a_full_disk(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    disk.add(prepared_claim("c1"))
    tmpfs.fill()
    assert disk.prepared_claims().raise_fence(PARTITION, 12345).fence(PARTITION) == 12345
    assert disk.load_checkpoint().fence(PARTITION) == 12345


def test_what_does_not_fit_is_an_error_and_the_file_stays_as_it_was(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    disk.add(prepared_claim("c1"))
    tmpfs.fill()
    unprepared = 0
    with suppress(DiskError):
        while unprepared < 200:
            before = disk.load_checkpoint()
            disk.remove(f"unknown-{unprepared:040}")
            unprepared += 1
    assert 5 < unprepared < 200, "there is room for a few"
    with pytest.raises(DiskError, match=r"node n1 cannot write what it has prepared: .*No space left on device"):
        disk.remove("another")
    assert disk.load_checkpoint() == before


def test_a_prepare_whose_checkpoint_cannot_be_written_leaves_no_spec(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    tmpfs.fill()
    with pytest.raises(DiskError, match="No space left on device"):
        disk.add(prepared_claim("c1"))
    assert disk.held_channels() == disk.spec_channels() == {}
    assert disk.files() <= {"imex-dra.lock", "ballast"}


def test_a_prepare_whose_spec_cannot_be_written_leaves_no_entry(disk: NodeDisk, cdi_tmpfs: Tmpfs) -> None:
    disk.add(prepared_claim("c1"))
    cdi_tmpfs.fill()
    with pytest.raises(DiskError, match="No space left on device"):
        disk.add(prepared_claim("c2"))
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}


def test_an_unprepare_on_a_read_only_disk_changes_nothing_and_is_completed_later(
    disk: NodeDisk, tmpfs: Tmpfs
) -> None:
    disk.add(prepared_claim("c1"))
    tmpfs.become_read_only()
    with pytest.raises(DiskError, match="Read-only file system"):
        disk.remove("c1")
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}
    tmpfs.become_writable()
    disk.remove("c1")
    assert disk.held_channels() == disk.spec_channels() == {}


def test_a_claim_whose_spec_cannot_be_removed_stays_prepared(disk: NodeDisk, cdi_tmpfs: Tmpfs) -> None:
    """A container could still get the channel through the spec."""
    disk.add(prepared_claim("c1"))
    cdi_tmpfs.become_read_only()
    with pytest.raises(DiskError, match="Read-only file system"):
        disk.remove("c1")
    assert disk.held_channels() == disk.spec_channels() == {"c1": 7}


def test_one_spec_that_cannot_be_rewritten_does_not_stop_the_others(disk: NodeDisk) -> None:
    for uid in ("c1", "c2", "c3"):
        disk.add(prepared_claim(uid))
    disk.root.load_driver(99)
    disk.spec_path("c2").unlink()
    disk.spec_path("c2").mkdir()
    with pytest.raises(DiskError, match="c2"):
        disk.prepared_claims().rewrite_specs(BOOT_ID)
    assert [disk.container_edits(uid)["deviceNodes"][0]["major"] for uid in ("c1", "c3")] == [99, 99]


@pytest.mark.parametrize(
    "operation",
    [
        lambda prepared: prepared.read(),
        lambda prepared: prepared.remove("c1"),
        lambda prepared: prepared.raise_fence(PARTITION, 4),
        lambda prepared: prepared.remove_orphans(),
        lambda prepared: prepared.rewrite_specs(BOOT_ID),
    ],
    ids=["read", "remove", "raise_fence", "remove_orphans", "rewrite_specs"],
)
def test_a_directory_that_cannot_be_used_is_an_error_that_is_retried(
    disk: NodeDisk, operation: Callable[[PreparedClaims], object]
) -> None:
    disk.checkpoint.parent.write_text("not a directory")
    with pytest.raises(DiskError, match="plugin"):
        operation(disk.prepared_claims())


def test_a_lock_that_another_process_does_not_release_is_an_error_that_says_so(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    prepared = structs.replace(disk.prepared_claims(), file=CheckpointFile(disk.checkpoint, lock_timeout=0.2))
    lock = str(disk.checkpoint.with_suffix(".lock"))
    holder = subprocess.Popen(["flock", lock, "sh", "-c", "echo locked; read line"], stdin=PIPE, stdout=PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(DiskError, match=r"imex-dra\.lock: another process has held the lock for 0\.2 s"):
        prepared.remove("c1")
    holder.communicate(b"\n")
    prepared.remove("c1")
    assert disk.held_channels() == disk.spec_channels() == {}


def test_an_unreadable_checkpoint_is_rebuilt_on_a_full_disk(disk: NodeDisk, tmpfs: Tmpfs) -> None:
    """It cannot be kept for people, but its claims can."""
    disk.add(prepared_claim("c1"))
    disk.checkpoint.write_bytes(b"x" * disk.checkpoint.stat().st_size)
    tmpfs.fill()
    assert disk.prepared_claims().read().claims.keys() == {"c1"}
    assert disk.held_channels() == {"c1": 7}


def test_a_missing_checkpoint_is_rebuilt_from_the_specs(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1"))
    disk.add(prepared_claim("c2", channel=-1, partition=""))
    before = disk.load_checkpoint()
    disk.checkpoint.unlink()
    rebuilt = disk.prepared_claims().read()
    assert rebuilt == Checkpoint(before.claims, file_id=rebuilt.file_id) == disk.load_checkpoint()
    assert rebuilt.file_id not in ("", before.file_id)
    assert not disk.checkpoint.with_suffix(".unreadable").exists()
    with pytest.raises(NotYet, match="still held"):
        disk.add(prepared_claim("c3", domain="other"))


def test_a_node_that_never_prepared_anything_has_no_file_and_logs_nothing(disk: NodeDisk) -> None:
    with structlog.testing.capture_logs() as logs:
        assert disk.prepared_claims().read() == Checkpoint()
        disk.prepared_claims().remove_orphans()
    assert logs == []
    assert not disk.checkpoint.exists()


def test_an_unprepare_after_the_checkpoint_was_lost_stops_a_prepare_that_began_before(disk: NodeDisk) -> None:
    """The new file counts unprepares from the beginning."""
    for number in range(5):
        disk.remove(f"old-{number}")
    disk.add(prepared_claim("c1"), unprepare_sequence=5)
    began = disk.prepared_claims().read()
    disk.checkpoint.unlink()
    disk.remove("c2")
    with pytest.raises(NotYet, match="was unprepared while it was being prepared"):
        disk.prepared_claims().add(prepared_claim("c2"), began, 1000)
