"""Two nodes of one rack, each with a host directory and a driver root in it, as a program.

    unshare --user --map-root-user --mount python -m tests.daemon.driver_root <directory>

A driver root has the libraries of this machine by bind mounts, and soft IMEX as /usr/bin/nvidia-imex. It is a
program of its own, because the mounts need a namespace. Prints what it observed, as JSON.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.state import DaemonState, PollIntervals
from imex_dra.daemon.supervisor import chroot_command
from imex_dra.imex.ctl import ImexCtl
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import CHANNELS
from tests.daemon.secret import Secret, certificate, new_authority
from tests.daemon.simulatednode import HARDWARE, Rack, RunningSupervisor
from tests.paths import ROOT
from tests.waiting import until_async

DRIVER_ROOT = "/run/nvidia/driver"
HOSTS = "127.0.0.1 localhost of the driver's container\n"
PYTHON = Path(sys.executable).resolve()
SCRIPT = f"""#!{PYTHON} -I
import os, sys
sys.path.insert(0, {str(ROOT / "sandbox/src")!r})
os.environ["IMEX_NODE_ROOT"], os.environ["IMEX_FABRIC_DIR"] = "/", "/fabric"
from imex_sandbox.softimex.PROGRAM import main
sys.exit(main())
"""


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def build(root: Path, address: str, mount: Callable[..., object] = mount) -> None:
    """In soft IMEX a node root stands for the root directory of a node: here it really is one."""
    NodeRoot(root).make(HARDWARE, address=address)
    (root / "fabric").mkdir(mode=0o700)
    (root / "etc").mkdir()
    (root / "etc/hosts").write_text(HOSTS)
    (root / "hosts").unlink()
    (root / "hosts").symlink_to("etc/hosts")
    _mount_libraries(root, mount)
    for program, module in {"nvidia-imex": "daemon", "nvidia-imex-ctl": "ctl"}.items():
        path = root / "usr/bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPT.replace("PROGRAM", module))
        path.chmod(0o755)


def _mount_libraries(root: Path, mount: Callable[..., object]) -> None:
    own = {Path("/lib"), Path("/lib64"), Path("/usr/lib"), Path("/usr/lib64"), Path(sys.base_prefix, "lib")}
    for path in sorted({*own, ROOT / "sandbox/src"}):
        target = root / str(path)[1:]
        if path.is_symlink():
            target.symlink_to(path.readlink())
        elif path.exists() and not target.exists():
            target.mkdir(parents=True)
            mount("--rbind", path, target)
    target = root / str(PYTHON)[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    mount("--bind", PYTHON, target)


class DriverRootNode:
    def __init__(self, directory: Path, address: str) -> None:
        self.host = directory / "host"
        self.driver_root = self.host / DRIVER_ROOT[1:]
        self.imex = directory / "imex"
        for name in (CHANNELS, "proc", "sys"):
            (self.host / name).mkdir(parents=True)
        build(self.driver_root, address)
        self.secret = Secret(directory / "secret")
        self.states: list[DaemonState] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DaemonManager]:
        command = chroot_command(self.imex, self.host, "nvidia-imex")
        supervisor = RunningSupervisor(
            self.imex, command, environment={"TLS_DIRECTORY": str(self.secret.directory)}
        )
        ctl = ImexCtl(chroot_command(self.imex, self.host, "nvidia-imex-ctl"), timeout=30)
        manager = DaemonManager(
            supervisor.files, ctl, self.states.append, poll_intervals=PollIntervals(0.2, 0.5, 1), tls=True
        )
        managing = asyncio.create_task(manager.run())
        try:
            yield manager
        finally:
            managing.cancel()
            await asyncio.wait({managing})
            supervisor.stop()
            supervisor.close()

    async def until_connected(self, *indexes: int) -> DaemonState:
        try:
            await until_async(lambda: self.states and self.states[-1].connected == indexes)
        except AssertionError as error:
            log = self.imex.with_name("imex.log").read_text()
            raise AssertionError(f"{error}; last state: {self.states[-1:]}; log: {log}") from None
        return self.states[-1]

    def session(self) -> int:
        """The PID of the nvidia-imex that has the node's only IMEX session."""
        return int((self.driver_root / "run/imex.lock").read_text())


async def observe(directory: Path) -> dict[str, Any]:
    rack = Rack()
    here, there = (DriverRootNode(directory / f"n{n}", rack.address(n)) for n in range(2))
    authority = await new_authority()
    for node in (here, there):
        node.secret.write(authority, await certificate(authority))
    try:
        async with here.running() as one, there.running() as other:
            one.desire(rack.member_list(0, 0), may_write=True, driver_root=DRIVER_ROOT)
            await here.until_connected()
            pid = here.session()
            one.desire(rack.member_list(0, 0, 1, generation=2), may_write=True, driver_root=DRIVER_ROOT)
            other.desire(rack.member_list(1, 0, 1, generation=2), may_write=True, driver_root=DRIVER_ROOT)
            await here.until_connected(1)
            await there.until_connected(0)
            return {
                "same pid": pid == here.session(),
                "root": Path(f"/proc/{pid}/root").readlink() == here.driver_root,
                "arguments": Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2:-1],
                "hosts outside": (here.driver_root / "etc/hosts").read_text(),
                "mounts outside": f"{here.driver_root}/etc/hosts" in Path("/proc/self/mounts").read_text(),
                "keys outside": [path.name for path in (here.imex / "tls").iterdir()],
                "persistent directory": (here.host / "run/nvidia-imex").is_dir(),
            }
    finally:
        rack.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(observe(Path(sys.argv[1])))))  # noqa: T201
