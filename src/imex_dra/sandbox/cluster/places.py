"""Where a cluster keeps its files; the run directory's path must be short, and nobody else's."""

import os
import stat
from pathlib import Path

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import Misconfigured

_LONGEST_SOCKET = 107
_LONGEST_BELOW_A_NODE = len(f"/k/plugins_registry/{DRIVER}-123456-reg.sock")


class Places:
    def __init__(self, name: str, *, state_root: Path | None = None, run_root: Path | None = None) -> None:
        self.name = name
        self.state = (state_root or default_state_root()) / name
        self.run = (run_root or default_run_root()) / name
        self.kubeconfig = self.state / "kubeconfig"
        self.pid = self.state / "pid"
        self.description = self.state / "cluster.json"
        self.accounts = self.state / "accounts"
        self.logs = self.state / "logs"
        self.control_plane = self.state / "control-plane"
        self.control = self.run / "control.sock"
        self.kubelets = self.run / "kubelets.sock"
        self.crew = self.run / "crew.sock"
        self.fabric = self.run / "fabric"

    def node(self, name: str) -> Path:
        return self.run / name

    def account(self, name: str) -> Path:
        """The kubeconfig of a node's driver, or of the controller."""
        return self.accounts / f"{name}.kubeconfig"

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def check(self, longest_node: str) -> None:
        length = len(os.fsencode(self.node(longest_node))) + _LONGEST_BELOW_A_NODE
        if length > _LONGEST_SOCKET:
            raise Misconfigured(
                f"the sockets of node {longest_node} would have paths of {length} bytes below {self.run}, and the"
                f" kernel allows {_LONGEST_SOCKET}: shorten the name of the cluster or of its racks by"
                f" {length - _LONGEST_SOCKET}"
            )


def default_state_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "imex-dra"


def default_run_root() -> Path:
    """Not in XDG_RUNTIME_DIR, which is small, and another one in every session."""
    return Path(f"/tmp/imex-{os.geteuid()}")


def claim_directory(path: Path) -> None:
    """Makes it, for nobody but us; refuses one that somebody else has put there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Misconfigured(f"{path} must be a directory of yours that nobody else can enter: remove it")
