"""An `nvidia-imex` as its documents describe it: command lines, files, signals, and what its ctl prints.

Nothing here knows how soft IMEX is made. These variables point the contract suite at another one:

    NVIDIA_IMEX       the daemon, with the option that makes it run without a GPU: "nvidia-imex --nogpu"
    NVIDIA_IMEX_CTL   "nvidia-imex-ctl"
    NVIDIA_IMEX_NET   the first three numbers of addresses that this machine has on an interface, from .10 on
"""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOFT = "NVIDIA_IMEX" not in os.environ
DAEMON = shlex.split(os.environ.get("NVIDIA_IMEX", f"{sys.executable} -m imex_dra.softimex.daemon --nogpu"))
CTL = shlex.split(os.environ.get("NVIDIA_IMEX_CTL", f"{sys.executable} -m imex_dra.softimex.ctl"))
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]
COMMAND_PORT = 50005


def eventually(condition: Callable[[], object], within: float = 60, seen: Callable[[], object] = str) -> None:
    """Wait for a condition; fail, with what was seen instead, when the time is over."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {seen()}"
        time.sleep(0.02)


class Node:
    def __init__(self, directory: Path, address: str) -> None:
        self.directory, self.address = directory, address
        self.config = directory / "config.cfg"
        self.nodes_file = directory / "nodes.cfg"
        self.log = directory / "stderr"
        self.settings: dict[str, object] = {
            "DAEMONIZE": 0,
            "LOG_FILE_NAME": "",
            "BIND_INTERFACE_IP": address,
            "IMEX_NODE_CONFIG_FILE": self.nodes_file,
            "IMEX_CMD_ENABLED": 1,
            "IMEX_CMD_PORT": COMMAND_PORT,
            "IMEX_CMD_BIND_INTERFACE_IP": address,
        }
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir()
        (directory / "addresses").write_text(f"{address}\n")  # soft IMEX's stand-in for `ip address`

    @property
    def env(self) -> dict[str, str]:
        """Soft IMEX takes the directory for a machine; others don't care."""
        return {**os.environ, "IMEX_NODE_ROOT": str(self.directory)}

    def write_config(self, **settings: object) -> None:
        self.settings.update(settings)
        self.config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))

    def start(self, *arguments: str) -> None:
        self.write_config()
        with self.log.open("ab") as log:
            command = [*DIES_WITH_US, *DAEMON, "-c", str(self.config), *arguments]
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A start that is expected to end by itself."""
        self.write_config()
        command = [*DAEMON, "-c", str(self.config), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def send(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(60)

    def ctl(self, *arguments: str, config: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*CTL, *arguments, *(["-c", str(self.config)] if config else [])]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def ready(self) -> bool:
        return self.ctl("-q").stdout == "READY\n"

    def view(self) -> dict[str, Any]:
        """The domain, as this node's ctl tells it."""
        content: dict[str, Any] = json.loads(self.ctl("-N", "-j").stdout)
        return content

    @contextmanager
    def watching(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """A ctl that goes on until it is told to stop."""
        command = [*DIES_WITH_US, *CTL, *arguments, "-c", str(self.config)]
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def text(self) -> str:
        return self.ctl("-N").stdout

    def daemons(self) -> list[int]:
        """Processes that were started with this node's configuration."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.config).encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


class Domain:
    """Nodes with one nodes file, which lists their addresses."""

    def __init__(self, size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        chance = random.SystemRandom()
        net = os.environ.get("NVIDIA_IMEX_NET") or f"127.{chance.randrange(100, 250)}.{chance.randrange(1, 250)}"
        self.nodes = [Node(self.directory / f"n{slot}", f"{net}.{slot + 10}") for slot in range(size)]
        for node in self.nodes:
            node.nodes_file.write_text("".join(f"{other.address}\n" for other in self.nodes))

    def start(self, *arguments: str) -> None:
        for node in self.nodes:
            node.start(*arguments)
        self.until("UP")

    def until(self, status: str) -> None:
        first = self.nodes[0]
        eventually(lambda: first.view()["status"] == status, seen=first.text)

    def close(self) -> None:
        for node in self.nodes:
            if node.process:
                node.end(signal.SIGKILL)
            for pid in node.daemons():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory)
