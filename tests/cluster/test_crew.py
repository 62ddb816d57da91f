"""The crew as a process, on a node without a kubelet and without a cluster: what it keeps, and what it refuses."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imex_dra.base.errors import Rejected, Unavailable
from imex_dra.hardware.simulated import HardwareFile
from imex_dra.sandbox.cluster import crew
from imex_dra.sandbox.cluster.crewsettings import CrewNode, CrewSettings
from imex_dra.sandbox.control import Request, ask
from imex_dra.sandbox.noderoot import NodeRoot
from imex_dra.sandbox.process import Process
from tests.sandbox.waiting import eventually


@pytest.fixture(scope="module")
def settings() -> Iterator[CrewSettings]:
    with tempfile.TemporaryDirectory(prefix="ic", dir="/tmp") as directory:
        root = Path(directory)
        NodeRoot(root / "n0").make(HardwareFile(), address="127.15.0.10")
        node = CrewNode("n0", "127.15.0.10", root / "n0", root / "not-there-yet.kubeconfig")
        yield CrewSettings([node], root / "fabric", root, root / "crew.sock")


@pytest.fixture(scope="module")
def process(settings: CrewSettings) -> Iterator[Process]:
    file = settings.logs / "crew.json"
    file.write_bytes(msgspec.json.encode(settings, enc_hook=str))
    started = Process("crew", [sys.executable, "-m", crew.__name__, file], log=settings.logs / "crew.log")
    started.start()
    started.until(settings.control.exists, within=50)
    yield started
    started.stop()


def test_the_daemon_is_there_before_the_node_has_a_token(settings: CrewSettings, process: Process) -> None:
    assert eventually((settings.nodes[0].root / "run/daemon.sock").exists)
    assert ask(settings.control, Request("status")) == {"down": []}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("kill", "n1", "imex-node"), "there is no node n1"),
        (Request("kill", "n0", "init"), "no program init: it has kubelet, imex-node, imex-daemon, nvidia-imex"),
        (Request("start", "n0", "imex-node"), "imex-node of node n0 runs already"),
        (Request("start", "n0", "nvidia-imex"), "imex-daemon starts it"),
        (Request("pid", "n0", "nvidia-imex"), "no nvidia-imex runs on the node"),
        (Request("dance", "n0", "imex-node"), "imex-node can't dance"),
        (Request("resume", "n0", "imex-node"), "no process of its own"),
    ],
)
def test_what_can_not_be_done_is_refused(
    settings: CrewSettings, process: Process, request_: Request, words: str
) -> None:
    with pytest.raises(Rejected, match=words):
        ask(settings.control, request_)


def test_power_goes_and_comes(settings: CrewSettings, process: Process) -> None:
    ask(settings.control, Request("power-off", "n0"))
    assert ask(settings.control, Request("status")) == {"down": ["n0/imex-node", "n0/imex-daemon"]}
    with pytest.raises(Rejected, match="does not run"):
        ask(settings.control, Request("hang", "n0", "imex-daemon"))
    ask(settings.control, Request("power-on", "n0"))
    assert ask(settings.control, Request("status")) == {"down": []}


def test_it_ends_in_order_when_it_is_told_to(settings: CrewSettings, process: Process) -> None:
    process.stop(within=60)
    assert process.exit_code == 0
    with pytest.raises(Unavailable):
        ask(settings.control, Request("status"))
