"""The documented interface of `nvidia-imex` and `nvidia-imex-ctl`: configuration, files, signals, text, JSON.

Nothing here knows how soft IMEX is made. Point it at other binaries with NVIDIA_IMEX and NVIDIA_IMEX_CTL.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.softimex.rack import CTL, Node, Rack, eventually

MakeRack = Callable[[int], Rack]


@pytest.fixture(scope="module")
def pair() -> Iterator[Rack]:
    """Two nodes that are up; tests here only look at them."""
    rack = Rack(2)
    socket_path = rack.nodes[0].root / "cmd.sock"
    rack.nodes[0].write_config(IMEX_CMD_UNIX_DOMAIN_PATH=socket_path)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def node(make_rack: MakeRack) -> Node:
    return make_rack(1).nodes[0]


def ready(node: Node) -> bool:
    return node.state() == "READY\n"


def continuous_views(node: Node) -> Generator[str, None, None]:
    """The domain's state in every view that `-n -j` prints."""
    command = [*CTL, "-n", "-j", "-c", str(node.config)]
    with subprocess.Popen(command, env=node.env, stdout=subprocess.PIPE) as watching:
        assert watching.stdout
        text = ""
        try:
            while chunk := os.read(watching.stdout.fileno(), 65536).decode():
                text = (text + chunk).lstrip()
                with suppress(ValueError):
                    view, end = json.JSONDecoder().raw_decode(text)
                    text = text[end:]
                    yield view["status"]
        finally:
            watching.send_signal(signal.SIGINT)
            assert watching.wait(20) == 0


def _more_than(node: Node, before: int) -> bool:
    return node.log_text().count("SIGUSR1") > before


def start_error(node: Node, *arguments: str) -> str:
    result = node.run(*arguments)
    assert result.returncode != 0
    return result.stderr


class TestStart:
    def test_a_daemon_is_ready_and_ends_cleanly(self, node: Node) -> None:
        node.start()
        eventually(lambda: ready(node))
        assert node.stop() == 0
        assert node.ctl("-q").returncode != 0

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
    def test_other_signals_end_it_cleanly_too(self, node: Node, number: signal.Signals) -> None:
        node.start()
        eventually(lambda: ready(node))
        assert node.end(number) == 0

    def test_it_daemonises_when_told_so(self, node: Node) -> None:
        node.settings["DAEMONIZE"] = 1
        node.settings["LOG_FILE_NAME"] = node.log
        assert node.run().returncode == 0
        assert ready(node)
        pid = int((node.root / "run/imex.lock").read_text())
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        assert "READY" in node.log_text()

    def test_a_daemonised_start_that_fails_says_so(self, node: Node) -> None:
        node.settings["DAEMONIZE"] = 1
        node.nodes_file.unlink()
        assert "Failed to read node configuration file" in start_error(node)

    def test_a_second_daemon_finds_the_session_in_use(self, node: Node) -> None:
        node.start()
        eventually(lambda: ready(node))
        error = start_error(node)
        assert "NV_ERR_IN_USE" in error
        assert "Failed to allocate Imex session" in error
        assert ready(node)

    def test_an_unknown_key_is_a_warning(self, node: Node) -> None:
        node.write_config(IMEX_SOMETHING_NEW=1)
        node.start()
        eventually(lambda: ready(node))
        assert "IMEX_SOMETHING_NEW" in node.log_text()

    def test_an_invalid_value_stops_the_start_and_is_named(self, node: Node) -> None:
        node.settings["LOG_LEVEL"] = "loud"
        assert "LOG_LEVEL" in start_error(node)

    def test_a_missing_configuration_is_named(self, node: Node) -> None:
        result = node.run("-c", "/does/not/exist")
        assert result.returncode != 0
        assert "/does/not/exist" in result.stderr

    def test_no_matching_interface_stops_the_start(self, node: Node) -> None:
        node.nodes_file.write_text("10.1.2.3\nimex-unknown\n")
        assert re.search("no matching network interface", start_error(node), re.IGNORECASE)

    def test_a_log_file_that_cannot_be_opened_means_stderr(self, node: Node) -> None:
        node.write_config(LOG_FILE_NAME="/does/not/exist/log")
        node.start()
        eventually(lambda: ready(node))
        assert "READY" in node.log_text()

    def test_a_port_may_be_given_on_the_command_line(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.nodes[0].start("-p", "50100")
        rack.nodes[1].start("--port", "50100")
        rack.until_up()

    def test_without_gpu_the_version_says_so(self, node: Node) -> None:
        (node.root / "hardware.json").unlink()
        node.start("--nogpu")
        eventually(lambda: ready(node))
        assert "Version: NO_GPU" in node.ctl("-N").stdout

    def test_the_nodes_file_is_read_only_at_start(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.start()
        for node in rack.nodes:
            node.nodes_file.write_text("127.0.0.1\n")
        rack.nodes[0].send(signal.SIGUSR1)
        eventually(lambda: "SIGUSR1" in rack.nodes[0].log_text())
        rack.until_up()


class TestCtl:
    def test_q_prints_the_state_and_nothing_else(self, pair: Rack) -> None:
        result = pair.nodes[0].ctl("-q")
        assert (result.returncode, result.stdout, result.stderr) == (0, "READY\n", "")

    def test_a_daemon_is_asked_by_address_or_unix_socket(self, pair: Rack) -> None:
        first, second = pair.nodes
        path = f"{first.root}/cmd.sock"
        assert first.ctl("-q", "-i", second.address, "50005", config=False).stdout == "READY\n"
        assert first.ctl("-q", "-u", path, config=False).stdout == "READY\n"
        assert first.ctl("-q", f"--u={path}", config=False).stdout == "READY\n"

    def test_only_one_way_to_ask_is_allowed(self, pair: Rack) -> None:
        assert pair.nodes[0].ctl("-q", "-i", pair.nodes[0].address, "50005").returncode != 0

    def test_the_domain_needs_the_configuration(self, pair: Rack) -> None:
        assert pair.nodes[0].ctl("-N", "-u", "/x", config=False).returncode != 0
        assert pair.nodes[0].ctl("-q", "-j").returncode != 0

    def test_the_text_of_the_domain(self, pair: Rack) -> None:
        lines = pair.nodes[0].ctl("-N").stdout.splitlines()
        assert lines[0] == "Connectivity Table Legend:"
        assert any(re.fullmatch(r"\d+/\d+/\d{4} \d\d:\d\d:\d\d\.\d{3}", line) for line in lines)
        nodes = [line for line in lines if line.startswith("Node #")]
        assert re.fullmatch(r"Node #0   \* imex-test-000 +\* READY +- Version: 580\.95\.05", nodes[0])
        assert re.fullmatch(r"Node #1   - imex-test-001 +- READY +- Version: 580\.95\.05", nodes[1])
        table = lines.index(r" Nodes From\To  0   1")
        assert [line.split() for line in lines[table + 1 : table + 3]] == [["0", "C", "C"], ["1", "C", "C"]]
        assert lines[-1] == "Domain State: UP"

    def test_the_json_of_the_domain(self, pair: Rack) -> None:
        content = json.loads(pair.nodes[1].ctl("-N", "-j", "-H").stdout)
        assert list(content)[-1] == "status"
        assert content["status"] == "UP"
        first = content["nodes"]["0"]
        assert (first["status"], first["host"], first["hostName"]) == ("READY", "imex-test-000", "imex-test-000")
        assert first["version"] == "580.95.05"
        assert first["connections"]["1"] == {
            "host": pair.nodes[1].address,
            "status": "CONNECTED",
            "changed": True,
        }

    def test_a_missing_nodes_file_is_named(self, make_rack: MakeRack) -> None:
        node = make_rack(1).nodes[0]
        node.write_config()
        node.nodes_file.unlink()
        result = node.ctl("-N")
        assert result.returncode == 255
        assert "Failed to read node configuration file" in result.stderr

    def test_nobody_there_is_an_error_for_q_and_down_for_the_domain(self, node: Node) -> None:
        node.write_config()
        assert node.ctl("-q").returncode == 255
        assert node.ctl("-q").stdout == ""
        assert node.ctl("-N").stdout.splitlines()[-1] == "Domain State: DOWN"

    def test_a_subscription_tells_every_state_until_the_end(self, node: Node) -> None:
        node.start()
        eventually(lambda: ready(node))
        command = [*CTL, "-s", "-c", str(node.config)]
        with subprocess.Popen(command, env=node.env, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout
            assert watching.stdout.readline() == "READY\n"
            node.stop()
            assert watching.stdout.read() == "SHUTTING_DOWN\n"

    def test_a_subscription_ends_with_its_time(self, pair: Rack) -> None:
        began = time.monotonic()
        assert pair.nodes[0].ctl("-s", "-t", "300").stdout == "READY\n"
        assert time.monotonic() - began >= 0.3

    def test_a_continuous_view_is_printed_again_when_something_changes(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.start()
        views = continuous_views(rack.nodes[0])
        seen = [next(views)]
        rack.nodes[1].kill()
        seen.append(next(views))
        views.close()
        assert seen == ["UP", "DEGRADED"]

    def test_a_daemon_that_hangs_is_not_waited_for(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.start()
        rack.nodes[1].send(signal.SIGSTOP)
        text = rack.nodes[0].ctl("-N", "-t", "300").stdout
        assert re.search(r"Node #1 .* UNAVAILABLE", text)
        assert text.endswith("I   I\n\nDomain State: DEGRADED\n")
        assert (
            rack.nodes[0].ctl("-q", "-i", rack.nodes[1].address, "50005", "-t", "300", config=False).stdout == ""
        )


class TestSignals:
    def test_usr1_resolves_names_anew(self, make_rack: MakeRack) -> None:
        """The second daemon moves to another address; the first finds it there, with nothing but a signal."""
        rack = make_rack(2)
        first, second = rack.nodes
        rack.start()
        second.stop()
        second.address = f"127.{rack.net}.99"
        (second.root / "addresses").write_text(f"{second.address}\n")
        rack.map({0: first.address, 1: second.address})
        second.write_config(IMEX_CMD_BIND_INTERFACE_IP=second.address)
        second.start()
        first.send(signal.SIGUSR1)
        rack.until_up()
        assert second.address in first.ctl("-N", "-j").stdout

    def test_usr1_is_handled_once_in_five_seconds(self, make_rack: MakeRack) -> None:
        node = make_rack(1).nodes[0]
        node.start()
        eventually(lambda: ready(node))
        for _ in range(3):
            before = node.log_text().count("SIGUSR1")
            node.send(signal.SIGUSR1)
            eventually(partial(_more_than, node, before))
        assert node.log_text().count("SIGUSR1: all connections are made anew") == 1
        assert node.log_text().count("SIGUSR1 ignored") == 2

    def test_hup_dumps_the_log_buffer(self, node: Node) -> None:
        node.write_config(LOG_LEVEL=1)
        node.start()
        eventually(lambda: ready(node))
        assert "state: READY" not in node.log_text()
        node.send(signal.SIGHUP)
        eventually(lambda: "state: READY" in node.log_text())
        assert ready(node)
