"""Simulated nodes for tests: a root directory, an address in 127/8 and a daemon process each.

Every rack takes addresses of its own, so that test runs on one machine don't meet.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from imex_dra.softimex.domain import Domain, Surroundings, survey
from imex_dra.softimex.states import LinkState
from tests.softimex.installation import DIES_WITH_US, eventually

__all__ = ["DIES_WITH_US", "Node", "Rack", "eventually"]

DAEMON = [sys.executable, "-m", "imex_dra.softimex.daemon"]
CTL = [sys.executable, "-m", "imex_dra.softimex.ctl"]
PARTITION = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
VERSION = "580.95.05"


class Node:
    def __init__(self, rack: "Rack", slot: int) -> None:
        self.rack, self.slot = rack, slot
        self.root = rack.directory / f"n{slot:02d}"
        self.address = f"127.{rack.net}.{slot + 10}"
        self.config = self.root / "config.cfg"
        self.nodes_file = self.root / "nodes.cfg"
        self.log = self.root / "log"
        self.settings: dict[str, object] = {
            "DAEMONIZE": 0,
            "LOG_FILE_NAME": "",
            "IMEX_NODE_CONFIG_FILE": self.nodes_file,
            "IMEX_CMD_BIND_INTERFACE_IP": self.address,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.root.mkdir()
        (self.root / "addresses").write_text(f"{self.address}\n")
        self.set_hardware()

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "IMEX_NODE_ROOT": str(self.root),
            "IMEX_FABRIC_DIR": str(self.rack.fabric),
            "IMEX_CLIENT_SOCKET": str(self.root / "run/client/imex.sock"),
        }

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def set_hardware(
        self, version: str = VERSION, partition: str = PARTITION, state: str = "ok", gpus: int = 4
    ) -> None:
        content = {
            "driverVersion": version,
            "partition": partition,
            "fabric": {"state": state, "reason": "" if state == "ok" else "the test says so"},
            "gpus": [{"index": index} for index in range(gpus)],
        }
        self.replace("hardware.json", json.dumps(content))

    def cut(self, *others: "Node") -> None:
        self.set_network(**{other.address: "drop" for other in others})

    def set_network(self, **faults: object) -> None:
        self.replace("network.json", json.dumps(faults))

    def replace(self, name: str, content: str) -> None:
        temporary = self.root / f".{name}"
        temporary.write_text(content)
        temporary.rename(self.root / name)

    def write_config(self, **settings: object) -> None:
        self.settings.update(settings)
        self.config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))

    def start(self, *arguments: str) -> None:
        if not self.config.exists():
            self.write_config()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*DIES_WITH_US, *DAEMON, "-c", str(self.config), *arguments],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A start that is expected to end by itself."""
        self.write_config()
        command = [*DAEMON, "-c", str(self.config), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        return self.end(signal.SIGTERM)

    def kill(self) -> int:
        return self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        assert self.process
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(60)

    def ctl(self, *arguments: str, config: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*CTL, *arguments, *(["-c", str(self.config)] if config else [])]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def state(self) -> str:
        return self.ctl("-q").stdout

    def verbose_log(self) -> str:
        """The log with what is kept in memory only, as far as it was dumped by now."""
        self.send(signal.SIGHUP)
        return self.log_text()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Rack:
    """Nodes of one IMEX domain: one nodes file and one hosts file for all."""

    def __init__(self, size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        self.fabric = Path(tempfile.mkdtemp(prefix="imex-fabric-", dir="/dev/shm"))
        self.net = f"{random.SystemRandom().randrange(100, 250)}.{random.SystemRandom().randrange(1, 250)}"
        self.names = [f"imex-test-{slot:03d}" for slot in range(size)]
        self.nodes = [Node(self, slot) for slot in range(size)]
        self.map({node.slot: node.address for node in self.nodes})
        for node in self.nodes:
            node.nodes_file.write_text("".join(f"{name}\n" for name in self.names))

    def map(self, addresses: dict[int, str]) -> None:
        """Where the names point to, in every node's hosts file; a slot without address is empty."""
        lines = (f"{addresses.get(slot, '127.0.0.2')} {name}\n" for slot, name in enumerate(self.names))
        hosts = "".join(lines)
        for node in self.nodes:
            node.replace("hosts", hosts)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.until_up()

    def domain(self, seconds: float = 5) -> Domain:
        """Every node's own view, asked for from outside the rack, where no cables are cut."""
        hosts = {name: other.address for name, other in zip(self.names, self.nodes, strict=True)}
        return survey(self.names, Surroundings("", hosts, {}, 50005), seconds)

    def matrix(self, seconds: float = 5) -> list[list[LinkState]]:
        return [list(node.links) for node in self.domain(seconds).nodes]

    def letters(self, seconds: float = 5) -> list[str]:
        return ["".join(state.value for state in row) for row in self.matrix(seconds)]

    def until_up(self) -> None:
        eventually(lambda: self.domain().state.value == "UP", seen=self.letters)

    def until_link(self, source: int, target: int, state: LinkState) -> None:
        eventually(lambda: self.matrix()[source][target] is state, seen=self.letters)

    def close(self) -> None:
        for node in self.nodes:
            if node.process:
                node.kill()
        shutil.rmtree(self.directory)
        shutil.rmtree(self.fabric, ignore_errors=True)
