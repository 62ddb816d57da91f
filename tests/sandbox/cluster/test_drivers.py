"""The process that runs the driver's programs, for a node without a kubelet and without a cluster."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imex_dra.base.errors import Rejected, Unavailable
from imex_sandbox.cluster import drivers
from imex_sandbox.cluster.settings import DriverNode, DriverSettings
from imex_sandbox.control import Request, ask
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.process import Process
from imex_sandbox.simulated import HardwareFile
from tests.waiting import until


@pytest.fixture(scope="module")
def settings() -> Iterator[DriverSettings]:
    with tempfile.TemporaryDirectory(prefix="ic", dir="/tmp") as directory:
        root = Path(directory)
        NodeRoot(root / "n0").make(HardwareFile(), address="127.15.0.10")
        node = DriverNode("n0", "127.15.0.10", root / "n0", root / "does-not-exist.kubeconfig")
        yield DriverSettings([node], root / "fabric", root, root / "drivers.sock")


@pytest.fixture(scope="module")
def process(settings: DriverSettings) -> Iterator[Process]:
    file = settings.logs / "drivers.json"
    file.write_bytes(msgspec.json.encode(settings, enc_hook=str))
    started = Process("drivers", [sys.executable, "-m", drivers.__name__, file], log=settings.logs / "drivers.log")
    started.start()
    started.until(settings.socket.exists, within=50)
    yield started
    started.stop()


def test_the_supervisor_runs_before_the_node_has_a_token(settings: DriverSettings, process: Process) -> None:
    until((settings.nodes[0].root / "run/imex/control").is_fifo)
    assert ask(settings.socket, Request("status")) == {"down": []}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("kill", "n1", "imex-node"), "there is no node n1"),
        (Request("kill", "n0", "init"), "programs are kubelet, imex-node, imex-supervisor, nvidia-imex"),
        (Request("start", "n0", "imex-node"), "imex-node of node n0 is already running"),
        (Request("start", "n0", "nvidia-imex"), "its supervisor starts it"),
        (Request("pid", "n0", "nvidia-imex"), "nvidia-imex is not running on the node"),
        (Request("melt", "n0", "imex-node"), "imex-node does not support melt"),
        (Request("resume", "n0", "imex-node"), "imex-node of node n0 has no process of its own"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    settings: DriverSettings, process: Process, request_: Request, message: str
) -> None:
    with pytest.raises(Rejected, match=message):
        ask(settings.socket, request_)


def test_power_off_stops_the_programs_and_power_on_starts_them(settings: DriverSettings, process: Process) -> None:
    ask(settings.socket, Request("power-off", "n0"))
    assert ask(settings.socket, Request("status")) == {"down": ["n0/imex-node", "n0/imex-supervisor"]}
    with pytest.raises(Rejected, match="imex-supervisor of node n0 is not running"):
        ask(settings.socket, Request("hang", "n0", "imex-supervisor"))
    ask(settings.socket, Request("power-on", "n0"))
    assert ask(settings.socket, Request("status")) == {"down": []}


def test_sigterm_ends_the_process_with_exit_code_0(settings: DriverSettings, process: Process) -> None:
    process.stop(within=60)
    assert process.exit_code == 0
    with pytest.raises(Unavailable):
        ask(settings.socket, Request("status"))
