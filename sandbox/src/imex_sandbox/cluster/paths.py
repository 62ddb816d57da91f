"""The files of a cluster: state and logs in the user's home, sockets and node roots below /tmp.

Socket paths must be short, and the run directory must not be accessible to other users.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import Misconfigured

_LONGEST_SOCKET = 107
_LONGEST_BELOW_A_NODE = len(f"/k/plugins_registry/{DRIVER}-123456-reg.sock")


class ClusterPaths:
    def __init__(self, name: str, *, run_root: Path | None = None) -> None:
        self.name = name
        self.state = state_root() / name
        self.run = (run_root or default_run_root()) / name
        self.kubeconfig = self.state / "kubeconfig"
        self.pid = self.state / "pid"
        self.description = self.state / "cluster.json"
        self.driver_kubeconfigs = self.state / "driver-kubeconfigs"
        self.logs = self.state / "logs"
        self.control_plane = self.state / "control-plane"
        self.kubelets_settings = self.state / "kubelets.json"
        self.drivers_settings = self.state / "drivers.json"
        self.control_socket = self.run / "control.sock"
        self.kubelets_socket = self.run / "kubelets.sock"
        self.drivers_socket = self.run / "drivers.sock"
        self.fabric = self.run / "fabric"

    def node(self, name: str) -> Path:
        return self.run / name

    def driver_kubeconfig(self, name: str) -> Path:
        """The kubeconfig of a node's driver, or of the controller."""
        return self.driver_kubeconfigs / f"{name}.kubeconfig"

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def check_socket_length(self, longest_node: str) -> None:
        length = len(os.fsencode(self.node(longest_node))) + _LONGEST_BELOW_A_NODE
        if length > _LONGEST_SOCKET:
            raise Misconfigured(
                f"the sockets of node {longest_node} below {self.run} would have paths of {length} bytes, but the"
                f" kernel allows {_LONGEST_SOCKET}: shorten the name of the cluster or of its racks by"
                f" {length - _LONGEST_SOCKET} characters"
            )

    def create(self) -> None:
        """Create both directories, after removing what an earlier cluster of this name left behind."""
        create_private_directory(self.run.parent)
        for directory in (self.run, self.state):
            with suppress(FileNotFoundError):
                shutil.rmtree(directory)
            create_private_directory(directory)
        for directory in (self.logs, self.driver_kubeconfigs, self.fabric):
            directory.mkdir(mode=0o700)
        self.pid.write_text(f"{os.getpid()}\n")

    @property
    def temporary(self) -> list[Path]:
        """What is removed when the cluster ends: everything but the logs."""
        settings = [self.kubelets_settings, self.drivers_settings]
        credentials = [self.kubeconfig, self.driver_kubeconfigs, self.control_plane]
        return [self.run, self.pid, self.description, *credentials, *settings]


def state_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "imex-dra"


def default_run_root() -> Path:
    """Not below XDG_RUNTIME_DIR, which is small and differs between login sessions."""
    return Path(f"/tmp/imex-{os.geteuid()}")


def create_private_directory(path: Path) -> None:
    """Raise Misconfigured if it exists and belongs to, or is accessible to, another user."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Misconfigured(
            f"{path} is not a directory that only you can access: remove it, or change its owner and mode (0700)"
        )
