"""Device nodes of channels on the host: only root can reach them, and a claim has exactly its own."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import DeviceNode, Mount
from imex_dra.hardware.channelnodes import ChannelNodes, container_edits
from tests.devicenodes import description, require_mknod

OPTIONS = ("bind", "ro", "nosuid", "noexec")
ZERO = (1, 5)
"""Major and minor of /dev/zero: a device that can be opened here, unlike a channel."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    require_mknod(tmp_path / "host/dev")
    return tmp_path / "host"


@pytest.fixture
def open_root() -> Iterator[Path]:
    """Other users can enter it, unlike the directories of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        require_mknod(Path(directory) / "dev")
        yield Path(directory)


@pytest.fixture
def nodes(root: Path) -> ChannelNodes:
    return ChannelNodes(root)


def claim(root: Path, uid: str = "c1") -> Path:
    return root / "dev/imex-dra/claims" / uid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_channel_is_mounted_at_its_usual_path_and_allowed_by_a_placeholder() -> None:
    edits = container_edits("c1", 238, [7])
    assert edits.mounts == (
        Mount("/dev/imex-dra/claims/c1/channel7", "/dev/nvidia-caps-imex-channels/channel7", OPTIONS),
    )
    assert edits.device_nodes == (
        DeviceNode("/dev/imex-dra/placeholder", 238, 7, "c", file_mode=0o666, permissions="rw"),
    )
    assert edits.env == ()


def test_all_channels_are_one_mount_and_allowed_one_by_one() -> None:
    edits = container_edits("c1", 238, [3, 0, 1, 2])
    assert edits.mounts == (Mount("/dev/imex-dra/claims/c1", "/dev/nvidia-caps-imex-channels", OPTIONS),)
    assert [node.minor for node in edits.device_nodes] == [3, 0, 1, 2]


def test_a_claim_has_a_node_for_each_of_its_channels(root: Path, nodes: ChannelNodes) -> None:
    assert nodes.create("c1", 238, [7, 9]) == container_edits("c1", 238, [7, 9])
    assert {path.name for path in claim(root).iterdir()} == {"channel7", "channel9"}
    assert description(claim(root) / "channel7") == (238, 7, 0o666)
    assert nodes.claims() == {"c1"}


@pytest.mark.parametrize("umask", [0, 0o077], ids=["open umask", "closed umask"])
def test_the_modes_do_not_depend_on_the_umask(root: Path, nodes: ChannelNodes, umask: int) -> None:
    before = os.umask(umask)
    try:
        nodes.create("c1", 238, [7])
    finally:
        os.umask(before)
    base = root / "dev/imex-dra"
    assert [mode(base), mode(base / "claims"), mode(claim(root))] == [0o755, 0o700, 0o755]
    assert mode(base / "placeholder") == 0o444
    assert mode(claim(root) / "channel7") == 0o666


def test_only_root_can_open_a_channel_on_the_host(open_root: Path) -> None:
    ChannelNodes(open_root).create("c1", ZERO[0], [ZERO[1]])
    node = claim(open_root) / f"channel{ZERO[1]}"
    assert read_as(0, node) == "\0"
    with pytest.raises(PermissionError):
        read_as(1000, node)
    # The mode of the node lets everybody open it. It is the directory that protects it.
    (open_root / "dev/imex-dra/claims").chmod(0o755)
    assert read_as(1000, node) == "\0"


def read_as(user: int, path: Path) -> str:
    """The first byte of the device."""
    done = subprocess.run(
        ["head", "-c1", str(path)],
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in done.stderr:
        raise PermissionError(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_open_directory_is_closed_before_a_node_is_created(root: Path, nodes: ChannelNodes) -> None:
    (root / "dev/imex-dra/claims").mkdir(parents=True, mode=0o777)
    nodes.create("c1", 238, [7])
    assert mode(root / "dev/imex-dra/claims") == 0o700


def test_creating_again_changes_nothing(root: Path, nodes: ChannelNodes) -> None:
    nodes.create("c1", 238, [7])
    before = (claim(root) / "channel7").lstat()
    nodes.create("c1", 238, [7])
    assert (claim(root) / "channel7").lstat() == before


def test_after_a_driver_reload_a_node_has_the_new_major(root: Path, nodes: ChannelNodes) -> None:
    nodes.create("c1", 238, [7])
    nodes.create("c1", 239, [7])
    assert description(claim(root) / "channel7") == (239, 7, 0o666)


@pytest.mark.parametrize("wrong", ["file", "mode", "temporary"])
def test_a_wrong_node_is_replaced(root: Path, nodes: ChannelNodes, wrong: str) -> None:
    nodes.create("c1", 238, [7])
    node = claim(root) / "channel7"
    match wrong:
        case "file":
            node.unlink()
            node.write_text("")
        case "mode":
            node.chmod(0o600)
        case "temporary":  # of a process that was killed between mknod and rename
            node.rename(node.with_name(".channel7"))
    nodes.create("c1", 238, [7])
    assert {path.name for path in claim(root).iterdir()} == {"channel7"}
    assert description(node) == (238, 7, 0o666)


def test_a_claim_keeps_no_channel_of_an_earlier_prepare(root: Path, nodes: ChannelNodes) -> None:
    nodes.create("c1", 238, [7, 8])
    nodes.create("c1", 238, [9])
    assert {path.name for path in claim(root).iterdir()} == {"channel9"}


def test_removing_a_claim_keeps_the_others(root: Path, nodes: ChannelNodes) -> None:
    nodes.create("c1", 238, [7])
    nodes.create("c2", 238, [7])
    nodes.remove("c1")
    assert not claim(root).exists()
    assert description(claim(root, "c2") / "channel7") == (238, 7, 0o666)
    assert nodes.claims() == {"c2"}


def test_removing_what_does_not_exist_succeeds(nodes: ChannelNodes) -> None:
    nodes.remove("c1")
    assert nodes.claims() == set()
    nodes.create("c2", 238, [7])
    nodes.remove("c1")


def test_without_permission_the_error_says_what_imex_node_needs(tmp_path: Path) -> None:
    """In a user namespace the kernel refuses mknod, even to root."""
    (tmp_path / "dev").mkdir()
    program = (
        "import sys; from pathlib import Path; from imex_dra.hardware.channelnodes import ChannelNodes\n"
        "ChannelNodes(Path(sys.argv[1])).create('c1', 238, [7])"
    )
    message = run_in_user_namespace(program, tmp_path)
    assert "imex node may not create the device node of a channel" in message
    assert "Operation not permitted" in message
    assert "CAP_MKNOD" in message


def run_in_user_namespace(program: str, root: Path) -> str:
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", program, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert Misconfigured.__name__ in done.stderr
    return done.stderr.splitlines()[-1]
