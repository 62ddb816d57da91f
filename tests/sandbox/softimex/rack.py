"""Simulated nodes for tests, each with a root directory, an address in 127/8 and a daemon process.

Every rack uses random addresses, so that test runs on one machine do not interfere.
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
from typing import TYPE_CHECKING

from imex_sandbox.softimex.domain import Domain, QueryNetwork, query_domain
from imex_sandbox.softimex.peerstate import ConnectionState
from tests.sandbox.softimex.installation import DIES_WITH_US, Equal
from tests.waiting import until

if TYPE_CHECKING:  # every workload imports this module, and certificates take long to load
    from imex_sandbox.kubernetes.certificates import Authority

__all__ = ["DIES_WITH_US", "Equal", "Node", "Rack"]

DAEMON = [sys.executable, "-m", "imex_sandbox.softimex.daemon"]
CTL = [sys.executable, "-m", "imex_sandbox.softimex.ctl"]
PARTITION = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
VERSION = "580.95.05"


class Node:
    def __init__(self, rack: "Rack", index: int) -> None:
        self.rack, self.index = rack, index
        self.root = rack.directory / f"n{index:02d}"
        self.address = f"127.{rack.net}.{index + 10}"
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
            "fabric": {"state": state, "reason": "" if state == "ok" else "set by the test"},
            "gpus": [{"index": index} for index in range(gpus)],
        }
        self.replace("hardware.json", json.dumps(content))

    def block_network_to(self, *others: "Node") -> None:
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

    def enable_tls(self, authority: "Authority", name: str) -> None:
        """Create keys for the node, in its root, and configure them."""
        server = authority.server(f"server-{self.root.parent.name}-{self.index}", [f"DNS:{name}"])
        client = authority.client(f"client-{self.root.parent.name}-{self.index}", name, [])
        files = {
            "IMEX_SERVER_KEY": server.key,
            "IMEX_SERVER_CERT": server.certificate,
            "IMEX_SERVER_CERT_AUTH": authority.certificate,
            "IMEX_CLIENT_KEY": client.key,
            "IMEX_CLIENT_CERT": client.certificate,
            "IMEX_CLIENT_CERT_AUTH": authority.certificate,
        }
        for key, source in files.items():
            (self.root / key).write_bytes(source.read_bytes())
        paths = {key: self.root / key for key in files}
        self.write_config(IMEX_ENABLE_AUTH_ENCRYPTION=1, IMEX_AUTH_SOURCE="FILE", **paths)

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
        """Run a daemon that is expected to exit by itself."""
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

    def until_ready(self) -> None:
        until(lambda: Equal(self.state(), "READY\n"))

    def verbose_log(self) -> str:
        """The log, with the messages that the daemon keeps in memory as far as it has dumped them."""
        self.send(signal.SIGHUP)
        return self.log_text()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Rack:
    """The nodes of one IMEX domain. All have the same nodes config file and the same hosts file."""

    def __init__(self, size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-"))
        self.fabric = Path(tempfile.mkdtemp(prefix="imex-fabric-", dir="/dev/shm"))
        self.net = f"{random.SystemRandom().randrange(100, 250)}.{random.SystemRandom().randrange(1, 250)}"
        self.names = [f"imex-test-{index:03d}" for index in range(size)]
        self.nodes = [Node(self, index) for index in range(size)]
        self.map({node.index: node.address for node in self.nodes})
        for node in self.nodes:
            node.nodes_file.write_text("".join(f"{name}\n" for name in self.names))

    def map(self, addresses: dict[int, str]) -> None:
        """Write every node's hosts file. The name of an index without an address resolves to an unused one."""
        lines = (f"{addresses.get(index, '127.0.0.2')} {name}\n" for index, name in enumerate(self.names))
        hosts = "".join(lines)
        for node in self.nodes:
            node.replace("hosts", hosts)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.until_up()

    def domain(self, seconds: float = 5) -> Domain:
        """The replies of all nodes, queried from outside the rack, where the network is never blocked."""
        hosts = {name: other.address for name, other in zip(self.names, self.nodes, strict=True)}
        return query_domain(self.names, QueryNetwork("", hosts, {}, 50005), seconds)

    def letters(self, seconds: float = 5) -> list[str]:
        """The connectivity table, one string per node."""
        return letters(self.domain(seconds))

    def until_up(self) -> None:
        size = len(self.nodes)
        until(lambda: Equal(summary(self.domain()), ("UP", ["C" * size] * size)))

    def until_letters(self, *rows: str) -> None:
        until(lambda: Equal(self.letters(), list(rows)))

    def until_connection(self, source: int, target: int, state: ConnectionState) -> None:
        until(lambda: Equal(self.domain().nodes[source].connections[target], state))

    def close(self) -> None:
        for node in self.nodes:
            if node.process:
                node.kill()
        shutil.rmtree(self.directory)
        shutil.rmtree(self.fabric, ignore_errors=True)


def letters(domain: Domain) -> list[str]:
    return ["".join(state.value for state in node.connections) for node in domain.nodes]


def summary(domain: Domain) -> tuple[str, list[str]]:
    return domain.state.value, letters(domain)
