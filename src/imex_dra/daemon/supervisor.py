"""The directory that `imex node` shares with supervisor.sh, which runs nvidia-imex. See there for its files.

It is on a tmpfs, so nothing here blocks. Only one process may write: the publisher of the node.
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.clock import rfc3339_micro
from imex_dra.base.errors import Misconfigured, Unavailable
from imex_dra.base.files import write_atomically
from imex_dra.imex.config import HostsFile, Identity

SCRIPT = Path(__file__).with_name("supervisor.sh")
CHROOT_SCRIPT = SCRIPT.with_name("chroot.sh")
"""A daemon pod needs these files, but neither Python nor the rest of the package."""

NODES_FILE = "nodes_config.cfg"
"""Beside the configuration of an identity."""
_DRIVER_ROOT = "driver-root"


class Process(StrEnum):
    """nvidia-imex, as the supervisor sees it."""

    RUNNING = "running"
    STOPPED = "stopped"
    """There is nothing to run."""
    FAILED = "failed"
    """It ended, and will be started again."""


class Found(Struct, frozen=True):
    """What is in the directory. The default is what a supervisor finds after a reboot."""

    process: Process = Process.STOPPED
    pid: int = 0
    running: Identity | None = None
    """With which the process runs, or ran before it ended."""
    applied_title: str = ""
    """Of the hosts file, when the process was last told to read it."""
    exit_code: int | None = None
    """Of the last process, if it ended by itself."""
    restarts: int = 0
    started_at: str = ""
    current: str = ""
    """Name of the identity to run; empty: nothing is to run."""
    configured: Identity | None = None
    """The identity to run."""
    hosts: str = ""
    certificate: str = ""
    """Checksum of the certificate that is mounted for TLS; empty if there is none."""
    loaded_certificate: str = ""
    """The same, when the process was last told to read it."""
    address: str = ""
    """Of the daemon pod, if it is in the network of pods."""
    driver_root: str = ""
    """From which the next nvidia-imex starts; empty if it does not need one."""

    @property
    def hosts_title(self) -> str:
        return self.hosts.partition("\n")[0]

    @property
    def is_to_run(self) -> bool:
        return self.process is Process.RUNNING and self.current != ""


def chroot_command(directory: Path, host: Path, program: str) -> list[str]:
    """Runs a program of the GPU driver from the driver root that `imex node` has written."""
    return ["sh", str(CHROOT_SCRIPT), str(directory), str(host), program]


class Supervisor:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._control = directory / "control"
        self._current = directory / "current"
        self._hosts = directory / "hosts"

    def config(self, identity: Identity) -> Path:
        return self._folder(identity) / "config.cfg"

    def find(self) -> Found | None:
        """None if the supervisor does not run: what the directory says is then not true any more."""
        if not self._is_listening():
            return None
        # The start time is in another file than the rest: both are of one process if the status did not change.
        while True:
            status = self._read("status")
            found = self._found(dict(line.partition("=")[::2] for line in status.splitlines()))
            if self._read("status") == status:
                return found

    def _found(self, status: dict[str, str]) -> Found:
        current = self._current.readlink().name if self._current.is_symlink() else ""
        return Found(
            process=Process(status.get("state", Process.STOPPED)),
            pid=int(status.get("pid") or 0),
            running=self._identity(status.get("identity", "")),
            applied_title=status.get("hosts", ""),
            exit_code=int(status["exit"]) if status.get("exit") else None,
            restarts=int(status.get("restarts") or 0),
            started_at=self._started_at(),
            current=current,
            configured=self._identity(current),
            hosts=self._read("hosts"),
            certificate=self._read("certificate").strip(),
            loaded_certificate=status.get("certificate", ""),
            address=self._read("address").strip(),
            driver_root=self._read(_DRIVER_ROOT).strip(),
        )

    def last_output(self) -> str:
        return self._read("output")

    def write_config(self, identity: Identity) -> None:
        folder = self._folder(identity)
        folder.mkdir(parents=True, exist_ok=True)
        nodes = folder / NODES_FILE
        write_atomically(nodes, identity.nodes_file().encode())
        config = identity.config_file(
            nodes_file=nodes,
            command_socket=self.directory / "imex_ctrl.sock",
            # Only nvidia-imex has files there: chroot.sh mounts the Secret of the daemon pod.
            tls_directory=self.directory / "tls",
        )
        write_atomically(self.config(identity), config.encode())
        # Last, because it says that the others are there.
        write_atomically(folder / "identity.json", msgspec.json.encode(identity))

    def write_hosts(self, hosts: HostsFile) -> None:
        # In place, not by rename: a bind mount of the file in a container shows the old inode forever. First the
        # entries and then the title, so that the title never promises more than the file has.
        content = hosts.content.encode()
        title_size = len(hosts.title.encode()) + 1
        descriptor = os.open(self._hosts, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != len(content):  # of another partition, for which nothing runs
                os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content[title_size:], title_size)
            os.pwrite(descriptor, content[:title_size], 0)
            written = os.pread(descriptor, len(content) + 1, 0)
        finally:
            os.close(descriptor)
        if written != content:
            raise Misconfigured(f"{self._hosts} was changed while it was written: only one program may write it")

    def write_driver_root(self, driver_root: str) -> None:
        write_atomically(self.directory / _DRIVER_ROOT, f"{driver_root}\n".encode())

    def set_current(self, identity: Identity | None) -> None:
        if identity is None:
            self._current.unlink(missing_ok=True)
            return
        temporary = self.directory / ".current"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path("configs", identity.name))
        temporary.rename(self._current)

    def remove_other_configs(self, *kept: Identity | None) -> None:
        names = {identity.name for identity in kept if identity is not None}
        for folder in (self.directory / "configs").iterdir():
            if folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)

    def apply(self) -> None:
        self._send("apply")

    def reload(self, pid: int) -> None:
        self._send(f"reload {pid}")

    def _send(self, command: str) -> None:
        descriptor = self._open_control()
        if descriptor is None:
            raise Unavailable("the supervisor has just ended")
        try:
            # A short write to a FIFO is atomic; one that is full raises, because the supervisor hangs.
            os.write(descriptor, f"{command}\n".encode())
        finally:
            os.close(descriptor)

    def _is_listening(self) -> bool:
        descriptor = self._open_control()
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def _open_control(self) -> int | None:
        """None if no process reads from it."""
        try:
            return os.open(self._control, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return None
            raise

    def _folder(self, identity: Identity) -> Path:
        return self.directory / "configs" / identity.name

    def _identity(self, name: str) -> Identity | None:
        if not re.fullmatch("[0-9a-f]+", name):
            return None
        try:
            content = (self.directory / "configs" / name / "identity.json").read_bytes()
            return msgspec.json.decode(content, type=Identity)
        except (OSError, ValueError, RecursionError):
            return None

    def _started_at(self) -> str:
        with suppress(FileNotFoundError):
            changed = (self.directory / "started").stat().st_mtime
            return rfc3339_micro(datetime.fromtimestamp(changed, UTC))
        return ""

    def _read(self, name: str) -> str:
        try:
            return (self.directory / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""
