"""An installation of `nvidia-imex`, used only through its documented interfaces: commands, files, signals, output.

Nothing here depends on how soft IMEX is implemented. To run the contract suite on another installation, set:

    NVIDIA_IMEX       the daemon with the option to run without a GPU, for example "nvidia-imex --nogpu"
    NVIDIA_IMEX_CTL   for example "nvidia-imex-ctl"
    NVIDIA_IMEX_NET   the first three octets of addresses on an interface of this machine, from .10 to .13
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

from tests.waiting import until

DAEMON = shlex.split(os.environ.get("NVIDIA_IMEX", f"{sys.executable} -m imex_sandbox.softimex.daemon --nogpu"))
CTL = shlex.split(os.environ.get("NVIDIA_IMEX_CTL", f"{sys.executable} -m imex_sandbox.softimex.ctl"))
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]
COMMAND_PORT = 50005


class Equal:
    """A condition for `until` that shows both values when it fails."""

    def __init__(self, actual: object, expected: object) -> None:
        self._actual, self._expected = actual, expected

    def __bool__(self) -> bool:
        return self._actual == self._expected

    def __repr__(self) -> str:
        return f"{self._actual!r}, expected {self._expected!r}"


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
        (directory / "addresses").write_text(f"{address}\n")  # soft IMEX reads it in place of `ip address`

    @property
    def env(self) -> dict[str, str]:
        """Soft IMEX uses the directory as the node root; other installations ignore it."""
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
        """Run a daemon that is expected to exit by itself."""
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
        """The domain as the ctl of this node reports it."""
        content: dict[str, Any] = json.loads(self.ctl("-N", "-j").stdout)
        return content

    @contextmanager
    def watching(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """A ctl that runs until it is stopped."""
        command = [*DIES_WITH_US, *CTL, *arguments, "-c", str(self.config)]
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def text(self) -> str:
        return self.ctl("-N").stdout

    def daemons(self) -> list[int]:
        """The processes that were started with the configuration of this node."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.config).encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


class Domain:
    """Nodes with the same nodes config file, which lists their addresses."""

    _numbers_in_use: ClassVar[set[int]] = set()
    """Last octets, of domains in a given network: some tests need a second domain beside one that they share."""

    def __init__(self, size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        rng = random.SystemRandom()
        given = os.environ.get("NVIDIA_IMEX_NET")
        net = given or f"127.{rng.randrange(100, 250)}.{rng.randrange(1, 250)}"
        free = (number for number in count(10) if not given or number not in self._numbers_in_use)
        self._numbers = list(islice(free, size))
        self._numbers_in_use.update(self._numbers if given else ())
        self.nodes = [Node(self.directory / f"n{i}", f"{net}.{number}") for i, number in enumerate(self._numbers)]
        for node in self.nodes:
            node.nodes_file.write_text("".join(f"{other.address}\n" for other in self.nodes))

    def start(self, *arguments: str) -> None:
        for node in self.nodes:
            node.start(*arguments)
        self.until_state("UP")

    def until_state(self, state: str) -> None:
        until(lambda: Equal(self.nodes[0].view()["status"], state))

    def close(self) -> None:
        for node in self.nodes:
            if node.process:
                node.end(signal.SIGKILL)
            for pid in node.daemons():
                with suppress(ProcessLookupError):  # it may have ended by itself
                    os.kill(pid, signal.SIGKILL)
        self._numbers_in_use.difference_update(self._numbers)
        shutil.rmtree(self.directory)
