"""A program that is killed at any call leaves a consistent disk: nothing leaks, and no channel is held twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra.base.errors import NotYet
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.snapshots import PARTITION
from tests.paths import ROOT

OTHER = {"other": 1}
BOTH = {"other": 1, "c1": 7}


def disks_after_restart(
    scenario: str, directory: Path, *, at_least: int, device_nodes: bool = False
) -> list[NodeDisk]:
    """One disk for every call at which the program was killed, and one for the program that completed."""
    options = ["device-nodes"] if device_nodes else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.crash_points", scenario, str(directory), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    killed = int(done.stdout.splitlines()[-1])
    assert killed >= at_least, "fewer calls than the operation must make: crash_points.CALLS is incomplete"
    disks = [NodeDisk(directory / str(number), device_nodes=device_nodes) for number in range(killed + 1)]
    for disk in disks:
        disk.prepared_claims().remove_orphans()
        assert_nothing_leaked(disk)
    return disks


def assert_nothing_leaked(disk: NodeDisk) -> None:
    specs = {disk.spec_path(uid).name for uid in disk.spec_channels()}
    assert disk.files() <= {"imex-dra.json", "imex-dra.lock", "imex-dra.unreadable"} | specs
    assert disk.spec_channels().keys() <= disk.held_channels().keys(), "a spec without a checkpoint entry"
    assert disk.prepared_claims().hardware.claims_with_devices() <= disk.held_channels().keys(), "leaked devices"


def assert_held(disk: NodeDisk, expected: dict[str, int]) -> None:
    assert disk.held_channels() == disk.spec_channels() == expected
    for channel in expected.values():
        with pytest.raises(NotYet, match="still held"):
            add(disk, "c2", channel=channel, domain="third")


def add(disk: NodeDisk, uid: str = "c1", *, channel: int = 7, domain: str = "job") -> None:
    claim = prepared_claim(uid, channel=channel, domain=domain)
    disk.add(claim, unprepare_sequence=disk.load_checkpoint().unprepare_sequence)


def test_killed_prepare_then_prepared_again(tmp_path: Path) -> None:
    outcomes = set()
    for disk in disks_after_restart("add", tmp_path, at_least=9):
        outcomes.add(tuple(disk.held_channels()))
        assert disk.held_channels() in (OTHER, BOTH)
        assert_held(disk, disk.held_channels())
        add(disk)
        assert_held(disk, BOTH)
    assert outcomes == {("other",), ("other", "c1")}


def test_killed_first_prepare_of_a_node_then_prepared_again(tmp_path: Path) -> None:
    for disk in disks_after_restart("add-first", tmp_path, at_least=9):
        assert disk.held_channels() == disk.spec_channels()
        add(disk)
        assert_held(disk, {"c1": 7})


def test_killed_prepare_then_unprepared(tmp_path: Path) -> None:
    for disk in disks_after_restart("add", tmp_path, at_least=9):
        disk.remove("c1")
        assert_held(disk, OTHER)


def test_killed_prepare_after_a_reboot_then_prepared_again(tmp_path: Path) -> None:
    for disk in disks_after_restart("add-after-reboot", tmp_path, at_least=9):
        assert disk.held_channels() in (BOTH, {"other": 1, "c1": 5})
        add(disk)
        assert_held(disk, BOTH)
        assert disk.load_checkpoint().claims["c1"].boot_id == "boot-1"


def test_killed_unprepare_then_unprepared_again(tmp_path: Path) -> None:
    for disk in disks_after_restart("remove", tmp_path, at_least=6):
        assert disk.held_channels() in (OTHER, BOTH)
        disk.remove("c1")
        assert_held(disk, OTHER)


def test_killed_unprepare_then_prepared_again(tmp_path: Path) -> None:
    for disk in disks_after_restart("remove", tmp_path, at_least=6):
        if disk.held_channels() == BOTH:
            disk.prepared_claims().rewrite_spec(prepared_claim("c1", channel=7))
        else:
            add(disk)
        assert_held(disk, BOTH)


def test_killed_while_raising_a_fence(tmp_path: Path) -> None:
    for disk in disks_after_restart("raise-fence", tmp_path, at_least=4):
        assert disk.load_checkpoint().fence(PARTITION) in (0, 4)
        assert disk.prepared_claims().raise_fence(PARTITION, 4).fence(PARTITION) == 4
        assert_held(disk, BOTH)


def test_killed_while_rewriting_a_spec_after_a_driver_reload(tmp_path: Path) -> None:
    for disk in disks_after_restart("rewrite-spec", tmp_path, at_least=5):
        assert disk.held_channels() == disk.spec_channels() == BOTH
        disk.prepared_claims().rewrite_spec(prepared_claim("c1", channel=7))
        assert disk.container_edits("c1")["deviceNodes"][0]["major"] == 99
        assert_held(disk, BOTH)


def test_killed_while_rebuilding_an_unreadable_checkpoint(tmp_path: Path) -> None:
    for disk in disks_after_restart("rebuild", tmp_path, at_least=8):
        assert_held(disk, BOTH)
        assert disk.checkpoint.with_suffix(".unreadable").read_bytes() == b"corrupt"


def test_killed_while_removing_orphans(tmp_path: Path) -> None:
    for disk in disks_after_restart("remove-orphans", tmp_path, at_least=4):
        assert_held(disk, BOTH)


def test_killed_while_rebuilding_a_missing_checkpoint(tmp_path: Path) -> None:
    for disk in disks_after_restart("rebuild-missing", tmp_path, at_least=4):
        assert_held(disk, BOTH)


def test_killed_while_rewriting_all_specs_after_a_driver_reload(tmp_path: Path) -> None:
    for disk in disks_after_restart("rewrite-specs", tmp_path, at_least=10):
        assert disk.held_channels() == disk.spec_channels() == BOTH
        disk.prepared_claims().rewrite_specs("boot-1")
        assert [disk.container_edits(uid)["deviceNodes"][0]["major"] for uid in BOTH] == [99, 99]
        assert_held(disk, BOTH)


def test_killed_while_the_sweep_writes_a_missing_spec(tmp_path: Path) -> None:
    for disk in disks_after_restart("repair-spec", tmp_path, at_least=5):
        disk.prepared_claims().rewrite_specs("boot-1")
        assert_held(disk, BOTH)


def test_killed_while_the_sweep_unprepares_a_claim_without_a_spec(tmp_path: Path) -> None:
    for disk in disks_after_restart("sweep", tmp_path, at_least=5):
        assert disk.held_channels() in (OTHER, BOTH)
        disk.prepared_claims().remove_unless("c1", lambda: False)
        assert_held(disk, OTHER)
