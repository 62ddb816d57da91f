"""Behavior of soft IMEX that NVIDIA's documentation leaves open."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

import pytest

from imex_sandbox.softimex.daemon import Options, parse
from imex_sandbox.softimex.errors import StartError
from tests.sandbox.softimex.rack import CTL, DIES_WITH_US, Node, Rack
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]

HEAVY = {"argparse", "asyncio", "logging", "pathlib", "subprocess", "urllib.parse"}
LOADED = """
import sys
before = set(sys.modules)
import imex_sandbox.softimex.daemon, imex_sandbox.softimex.tls
print(*set(sys.modules) - before)
"""


@pytest.fixture
def node(make_rack: MakeRack) -> Node:
    return make_rack(1).nodes[0]


def start_error(node: Node, *arguments: str) -> str:
    result = node.run(*arguments)
    assert result.returncode == 1
    return result.stderr


class TestStart:
    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            ("", Options()),
            ("-c x", Options("x")),
            ("-p 50100 -nogpu", Options("", 50100, True)),
            ("--nogpu --port=50100 -cx", Options("x", 50100, True)),
            ("-c x -c y -p 1 -p 2", Options("y", 2)),
        ],
    )
    def test_the_command_line_is_that_of_nvidia_imex(self, arguments: str, options: Options) -> None:
        assert parse(arguments.split()) == options

    @pytest.mark.parametrize("arguments", ["-x", "-c", "x", "-p 0", "-p 65536", "-p x", "--port", "--nogpu=1"])
    def test_an_invalid_option_stops_the_start(self, arguments: str) -> None:
        with pytest.raises(StartError, match=r"--help|from 1 to 65535"):
            parse(arguments.split())

    def test_the_daemon_does_not_load_modules_that_take_much_memory(self) -> None:
        command = [sys.executable, "-c", LOADED]
        loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert "imex_sandbox.softimex.service" in loaded
        assert not HEAVY & set(loaded)

    def test_help_is_printed(self, node: Node) -> None:
        assert node.run("--help").stdout.startswith("usage: soft-nvidia-imex ")

    def test_a_failed_start_in_the_background_reports_its_error(self, node: Node) -> None:
        node.settings["DAEMONIZE"] = 1
        node.nodes_file.unlink()
        assert "Failed to read node configuration file" in start_error(node)

    def test_a_second_daemon_on_a_node_is_refused(self, node: Node) -> None:
        node.start()
        node.until_ready()
        error = start_error(node)
        assert "NV_ERR_IN_USE" in error
        assert "Failed to allocate Imex session" in error
        assert node.state() == "READY\n"

    def test_sockets_of_a_killed_daemon_are_replaced(self, node: Node) -> None:
        sockets = [node.root / "cmd.sock", node.root / "run/client/imex.sock"]
        node.write_config(IMEX_CMD_UNIX_DOMAIN_PATH=sockets[0])
        node.start()
        node.until_ready()
        node.kill()
        assert all(path.is_socket() for path in sockets)
        assert node.ctl("-q").returncode == 255
        node.start()
        node.until_ready()
        assert node.stop() == 0
        assert not any(path.exists() for path in sockets)

    def test_a_file_that_is_not_a_socket_is_not_replaced(self, node: Node) -> None:
        path = node.root / "precious"
        path.write_text("mine")
        node.settings["IMEX_CMD_UNIX_DOMAIN_PATH"] = path
        assert f"cannot listen on {path}" in start_error(node)
        assert path.read_text() == "mine"

    def test_an_unknown_key_is_logged_as_a_warning(self, node: Node) -> None:
        node.write_config(IMEX_SOMETHING_NEW=1)
        node.start()
        node.until_ready()
        assert "IMEX_SOMETHING_NEW" in node.log_text()

    def test_an_invalid_value_stops_the_start_with_an_error_that_names_the_key(self, node: Node) -> None:
        node.settings["LOG_LEVEL"] = "loud"
        assert "LOG_LEVEL" in start_error(node)

    def test_a_missing_configuration_is_an_error_that_names_the_file(self, node: Node) -> None:
        assert "/does/not/exist" in start_error(node, "-c", "/does/not/exist")


class TestCtl:
    def test_the_domain_shows_names_of_the_nodes_file_and_the_hosts_file(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.start()
        assert re.search(
            r"Node #1   - imex-test-001 +- READY +- Version: 580\.95\.05", rack.nodes[0].ctl("-N").stdout
        )
        first = json.loads(rack.nodes[0].ctl("-N", "-j", "-H").stdout)["nodes"]["0"]
        assert (first["host"], first["hostName"]) == ("imex-test-000", "imex-test-000")
        assert first["connections"]["1"]["host"] == rack.nodes[1].address

    def test_an_error_exits_with_255_and_explains_itself_on_stderr(self, node: Node) -> None:
        node.write_config()
        result = node.ctl("-q")
        assert (result.returncode, result.stdout) == (255, "")
        assert "Is it running?" in result.stderr

    def test_watching_the_state_prints_every_change_until_the_daemon_ends(self, node: Node) -> None:
        node.start()
        node.until_ready()
        command = [*DIES_WITH_US, *CTL, "-s", "-c", str(node.config)]
        with subprocess.Popen(command, env=node.env, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout
            assert watching.stdout.readline() == "READY\n"
            node.stop()
            assert watching.stdout.read() == "SHUTTING_DOWN\n"

    def test_watching_the_domain_prints_every_change(self, make_rack: MakeRack) -> None:
        rack = make_rack(2)
        rack.start()
        states = watch_domain(rack.nodes[0])
        assert next(states) == "UP"
        rack.nodes[1].kill()
        assert "DEGRADED" in states
        states.close()

    def test_the_ctl_does_not_wait_for_a_hung_daemon(self, make_rack: MakeRack) -> None:
        first, second = (rack := make_rack(2)).nodes
        rack.start()
        second.send(signal.SIGSTOP)
        assert re.search(r"Node #1 .* UNAVAILABLE", first.ctl("-N", "-t", "300").stdout)
        endpoint = ["-i", second.address, "50005", "-t", "300"]
        assert "Does it hang?" in first.ctl("-q", *endpoint, config=False).stderr


def watch_domain(node: Node) -> Generator[str, None, None]:
    """The domain state in every output of `-n -j`."""
    command = [*DIES_WITH_US, *CTL, "-n", "-j", "-c", str(node.config)]
    with subprocess.Popen(command, env=node.env, stdout=subprocess.PIPE) as watching:
        assert watching.stdout
        text = ""
        try:
            while chunk := os.read(watching.stdout.fileno(), 65536).decode():
                text = (text + chunk).lstrip()
                with suppress(ValueError):
                    domain, end = json.JSONDecoder().raw_decode(text)
                    text = text[end:]
                    yield domain["status"]
        finally:
            watching.kill()


class TestSignals:
    def test_sigusr1_resolves_host_names_again(self, make_rack: MakeRack) -> None:
        """The second daemon moves to another address. SIGUSR1 makes the first daemon find it there."""
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

    def test_sigusr1_is_handled_once_in_five_seconds(self, node: Node) -> None:
        node.start()
        node.until_ready()
        began = time.monotonic()
        for count in range(3):
            node.send(signal.SIGUSR1)
            until(partial(has_logged, node, "SIGUSR1", count + 1))
        elapsed = time.monotonic() - began
        handled = node.log_text().count("SIGUSR1: reconnecting to all peers")
        assert 1 <= handled <= 1 + elapsed // 5
        assert node.log_text().count("SIGUSR1 ignored") == 3 - handled


def has_logged(node: Node, message: str, count: int) -> bool:
    return node.log_text().count(message) >= count
