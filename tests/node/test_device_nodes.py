"""Prepared claims and their device nodes on the host change together, whatever a kill or an error interrupts."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.node.prepared import DiskError
from tests.devicenodes import require_mknod
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.test_crash_consistency import BOTH, OTHER, add, assert_held, disks_after_restart
from tests.node.tmpfs import mounted_tmpfs

MAJOR, RELOADED = 234, 99
NODES_OF_BOTH = {"other/channel1": 1, "c1/channel7": 7}
NODES_OF_OTHER = {"other/channel1": 1}


@pytest.fixture
def disk(tmp_path: Path) -> NodeDisk:
    require_mknod(tmp_path)
    return NodeDisk(tmp_path / "node", device_nodes=True)


def with_major(major: int, nodes: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (major, minor) for name, minor in nodes.items()}


def mount_sources_exist(disk: NodeDisk) -> bool:
    """Whether the runtime finds everything that the CDI specs name."""
    mounts = [mount for uid in disk.spec_channels() for mount in disk.container_edits(uid)["mounts"]]
    return all((disk.root.path / mount["hostPath"].lstrip("/")).exists() for mount in mounts)


def test_a_prepared_claim_has_its_device_node_on_the_host(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))
    assert disk.host_devices() == {"c1/channel7": (MAJOR, 7)}
    assert mount_sources_exist(disk)


def test_a_claim_of_all_channels_has_all_device_nodes(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=3, all_channels=True, channel_count=4))
    assert disk.host_devices() == with_major(MAJOR, {f"c1/channel{n}": n for n in range(4)})
    assert [node.get("minor", 0) for node in disk.container_edits("c1")["deviceNodes"]] == [3, 0, 1, 2]


def test_a_claim_without_a_channel_has_no_device_node(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=-1, partition=""))
    assert disk.host_devices() == {}


def test_an_unprepared_claim_has_no_device_node(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))
    disk.add(prepared_claim("c2", channel=7))
    disk.remove("c1")
    assert disk.host_devices() == {"c2/channel7": (MAJOR, 7)}


def test_unprepare_needs_no_gpu_driver(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))
    (disk.root.path / "proc/devices").unlink()
    disk.remove("c1")
    assert disk.host_devices() == {}


def test_the_sweep_restores_device_nodes_that_somebody_has_removed(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))
    (disk.root.path / "dev/imex-dra/claims/c1/channel7").unlink()
    disk.prepared_claims().rewrite_specs("boot-1")
    assert disk.host_devices() == {"c1/channel7": (MAJOR, 7)}


def test_a_refused_device_node_fails_the_prepare_and_leaves_nothing(disk: NodeDisk) -> None:
    # A file where the directory should be, which stops even root.
    (disk.root.path / "dev/imex-dra").write_text("")
    with pytest.raises(DiskError, match="imex-dra: File exists"):
        disk.add(prepared_claim("c1", channel=7))
    assert disk.spec_channels() == disk.held_channels() == {}


def test_a_prepare_that_cannot_write_its_spec_leaves_no_device_node(disk: NodeDisk) -> None:
    with mounted_tmpfs(disk.cdi) as cdi:
        cdi.fill()
        with pytest.raises(DiskError, match="No space left on device"):
            disk.add(prepared_claim("c1", channel=7))
        assert disk.prepared_claims().hardware.claims_with_devices() == set()
        assert disk.held_channels() == {}


def test_a_driver_without_channels_leaves_no_device_node(disk: NodeDisk) -> None:
    (disk.root.path / "proc/devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(Misconfigured):
        disk.add(prepared_claim("c1", channel=7))
    assert disk.host_devices() == {}


def killed(scenario: str, path: Path, *, at_least: int) -> list[NodeDisk]:
    require_mknod(path)
    disks = disks_after_restart(scenario, path, at_least=at_least, device_nodes=True)
    assert all(mount_sources_exist(disk) for disk in disks), "a spec names a device node that does not exist"
    return disks


def test_killed_prepare_then_prepared_again(tmp_path: Path) -> None:
    for disk in killed("add", tmp_path, at_least=13):
        assert disk.host_devices() in (with_major(MAJOR, NODES_OF_OTHER), with_major(MAJOR, NODES_OF_BOTH))
        add(disk)
        assert_held(disk, BOTH)
        assert disk.host_devices() == with_major(MAJOR, NODES_OF_BOTH)


def test_killed_unprepare_then_unprepared_again(tmp_path: Path) -> None:
    for disk in killed("remove", tmp_path, at_least=8):
        disk.remove("c1")
        assert_held(disk, OTHER)
        assert disk.host_devices() == with_major(MAJOR, NODES_OF_OTHER)


def test_killed_unprepare_then_repaired_by_the_sweep(tmp_path: Path) -> None:
    for disk in killed("remove", tmp_path, at_least=8):
        disk.prepared_claims().rewrite_specs("boot-1")
        assert disk.held_channels() == disk.spec_channels()
        assert mount_sources_exist(disk)


def test_killed_while_the_nodes_are_replaced_after_a_driver_reload(tmp_path: Path) -> None:
    for disk in killed("rewrite-specs", tmp_path, at_least=16):
        nodes = {name: number for name, number in disk.host_devices().items() if "/." not in name}
        assert nodes.keys() == NODES_OF_BOTH.keys(), "a node was missing for a moment"
        assert {major for major, _ in nodes.values()} <= {MAJOR, RELOADED}
        disk.prepared_claims().rewrite_specs("boot-1")
        assert disk.host_devices() == with_major(RELOADED, NODES_OF_BOTH)


def test_killed_while_removing_orphans(tmp_path: Path) -> None:
    for disk in killed("remove-orphans", tmp_path, at_least=6):
        assert_held(disk, BOTH)
        assert disk.host_devices() == with_major(MAJOR, NODES_OF_BOTH)
