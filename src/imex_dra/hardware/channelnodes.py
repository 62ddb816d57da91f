"""The device nodes of a claim's channels on the host, from which the container runtime gives them to a container.

    /dev/imex-dra                                0755
    /dev/imex-dra/placeholder                    0444, empty
    /dev/imex-dra/claims                         0700, so that no other user of the host can open a channel
    /dev/imex-dra/claims/<claim UID>/channel<N>  0666

A CDI entry in `deviceNodes` with a major and a minor suffices for an ordinary pod, because the runtime creates
the node. It cannot do so in the user namespace of a pod with `hostUsers: false`. There it bind-mounts the node
that has the same path on the host, and looks it up with the rights of the pod; a node within reach of these rights
can be opened by every user of the host. The sources of `mounts`, however, are opened with the rights of the
runtime. When a claim is prepared it is unknown which pods will use it, so one CDI spec serves both kinds:

- A mount of every node. It is read-only, which protects the inode (mode, owner); the device can be written.
- An entry in `deviceNodes` for every channel, because nothing else makes the runtime allow the device in the
  container's device cgroup. Its path is that of the placeholder: in a user namespace the runtime mounts the empty
  file there, and in an ordinary container it creates a second name of the claim's own channel.

The nodes are on a devtmpfs, because it is never mounted nodev, as /run is, and because a reboot empties it. The
caller holds the lock of the checkpoint, so there is one writer. docs/hardware.md says which runtimes were tested.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from imex_dra.api.names import CHANNEL_DEVICE_DIRECTORY, HOST_DEVICE_DIRECTORY, channel_path
from imex_dra.api.nodereasons import device_node_refused
from imex_dra.base.errors import Misconfigured
from imex_dra.cdi.spec import ContainerEdits, DeviceNode, Mount

CHANNEL_MODE = 0o666
"""Non-root workloads need write access. Isolation comes from which containers get the device node at all."""

_PLACEHOLDER = f"{HOST_DEVICE_DIRECTORY}/placeholder"
_CLAIMS = f"{HOST_DEVICE_DIRECTORY}/claims"
_MOUNT_OPTIONS = ("bind", "ro", "nosuid", "noexec")
_REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS)


class ChannelNodes:
    """`root` is where the host's root directory is mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, claim_uid: str, major: int, channels: Sequence[int]) -> ContainerEdits:
        """Makes the claim's nodes exactly these. Nodes from before a reload of the GPU driver are replaced."""
        try:
            self._create(claim_uid, major, channels)
        except OSError as error:
            if error.errno in _REFUSALS:
                refused = device_node_refused(path=str(error.filename), cause=str(error.strerror))
                raise Misconfigured(refused.message()) from error
            raise
        return container_edits(claim_uid, major, channels)

    def remove(self, claim_uid: str) -> None:
        directory = self._directory(claim_uid)
        for node in _entries(directory):
            node.unlink(missing_ok=True)
        if directory.is_dir():
            directory.rmdir()

    def claims(self) -> set[str]:
        """UIDs of claims with nodes."""
        return {path.name for path in _entries(self._host(_CLAIMS))}

    def _create(self, claim_uid: str, major: int, channels: Sequence[int]) -> None:
        _make_directory(self._host(HOST_DEVICE_DIRECTORY), 0o755)
        _make_placeholder(self._host(_PLACEHOLDER))
        # Closed before there is a node in it.
        _make_directory(self._host(_CLAIMS), 0o700)
        # Other users of a container see this directory if it is mounted as a whole.
        directory = self._directory(claim_uid)
        _make_directory(directory, 0o755)
        names = {f"channel{channel}": channel for channel in channels}
        for path in _entries(directory):
            if path.name not in names:
                path.unlink()
        for name, channel in names.items():
            make_node(directory / name, os.makedev(major, channel), CHANNEL_MODE)

    def _directory(self, claim_uid: str) -> Path:
        return self._host(_CLAIMS) / claim_uid

    def _host(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def container_edits(claim_uid: str, major: int, channels: Sequence[int]) -> ContainerEdits:
    nodes = tuple(
        DeviceNode(_PLACEHOLDER, major, channel, "c", file_mode=CHANNEL_MODE, permissions="rw")
        for channel in channels
    )
    host = f"{_CLAIMS}/{claim_uid}"
    if len(channels) == 1:
        # A file, not the directory: a container may use several claims.
        mount = Mount(f"{host}/channel{channels[0]}", channel_path(channels[0]), _MOUNT_OPTIONS)
    else:
        # All channels in one mount instead of thousands.
        mount = Mount(host, CHANNEL_DEVICE_DIRECTORY, _MOUNT_OPTIONS)
    return ContainerEdits(device_nodes=nodes, mounts=(mount,))


def make_node(path: Path, device: int, mode: int) -> None:
    """Makes `path` a character device with this number and mode, by rename: it is never absent or half made. One
    that is right is left alone.
    """
    if is_node(path, device, mode):
        return
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)  # of a process that was killed
    # Closed until its mode is right: mknod applies the umask.
    os.mknod(temporary, stat.S_IFCHR, device)
    temporary.chmod(mode)
    temporary.rename(path)


def is_node(path: Path, device: int, mode: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_mode == stat.S_IFCHR | mode and found.st_rdev == device


def _make_directory(path: Path, mode: int) -> None:
    path.mkdir(mode=mode, exist_ok=True)
    if stat.S_IMODE(path.lstat().st_mode) != mode:  # the umask, or somebody changed it
        path.chmod(mode)


def _make_placeholder(path: Path) -> None:
    if not path.exists():
        path.touch(mode=0o444)
    if stat.S_IMODE(path.lstat().st_mode) != 0o444:
        path.chmod(0o444)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
