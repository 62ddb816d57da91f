"""The documented interface of `nvidia-imex` and `nvidia-imex-ctl`: configuration, files, signals, text, JSON.

These tests cover what documentation and field reports state, and use only these interfaces. docs/softimex.md
explains how to run them on the original, `nvidia-imex --nogpu`. Behavior specific to soft IMEX is tested in
`test_daemon.py`.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.sandbox.softimex.installation import COMMAND_PORT, Domain, Equal, Node
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

MakeDomain = Callable[[int], Domain]


@pytest.fixture(scope="module")
def pair() -> Iterator[Domain]:
    """Two nodes that are up. Tests must not change them."""
    domain = Domain(2)
    domain.nodes[0].write_config(IMEX_CMD_UNIX_DOMAIN_PATH=domain.nodes[0].directory / "cmd.sock")
    domain.start()
    yield domain
    domain.close()


@pytest.fixture
def make_domain() -> Iterator[MakeDomain]:
    domains: list[Domain] = []

    def make(size: int) -> Domain:
        domains.append(Domain(size))
        return domains[-1]

    yield make
    for domain in domains:
        domain.close()


@pytest.fixture
def node(make_domain: MakeDomain) -> Node:
    return make_domain(1).nodes[0]


class TestStart:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
    def test_the_daemon_becomes_ready_and_a_signal_ends_it_cleanly(
        self, node: Node, number: signal.Signals
    ) -> None:
        node.start()
        until(node.ready)
        assert node.end(number) == 0
        assert node.ctl("-q").returncode != 0

    def test_the_daemon_goes_to_the_background_with_daemonize(self, node: Node) -> None:
        node.settings["DAEMONIZE"] = 1
        node.settings["LOG_FILE_NAME"] = node.log
        assert node.run().returncode == 0
        until(node.ready)
        until(lambda: len(node.daemons()) == 1)
        (pid,) = node.daemons()
        subprocess.run(["kill", "-TERM", str(pid)], check=True)
        until(lambda: not node.daemons())
        assert node.log.stat().st_size > 0

    def test_an_unknown_encryption_mode_stops_the_start(self, node: Node) -> None:
        node.write_config(IMEX_ENABLE_AUTH_ENCRYPTION=1, IMEX_AUTH_ENCRYPTION_MODE="ROT13")
        assert node.run().returncode != 0

    def test_a_nodes_file_without_an_own_address_stops_the_start(self, node: Node) -> None:
        node.nodes_file.write_text("192.0.2.1\n192.0.2.2\n")
        result = node.run()
        assert result.returncode != 0
        assert re.search("no matching network interface", result.stdout + result.stderr, re.IGNORECASE)

    @pytest.mark.parametrize("name", ["", "/does/not/exist/log"])
    def test_without_a_log_file_the_daemon_logs_no_gpu_mode_to_stderr(self, node: Node, name: str) -> None:
        node.write_config(LOG_FILE_NAME=name)
        node.start()
        until(node.ready)
        assert re.search("no gpu mode", node.log.read_text(), re.IGNORECASE)

    def test_the_command_line_sets_the_port(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.nodes[0].start("-p", "50100")
        domain.nodes[1].start("--port", "50100")
        domain.until_state("UP")


class TestCtl:
    def test_q_prints_the_state_and_nothing_else(self, pair: Domain) -> None:
        result = pair.nodes[0].ctl("-q")
        assert (result.returncode, result.stdout, result.stderr) == (0, "READY\n", "")

    def test_a_daemon_is_queried_by_address_or_unix_socket(self, pair: Domain) -> None:
        first, second = pair.nodes
        path = f"{first.directory}/cmd.sock"
        for endpoint in (["-i", second.address, str(COMMAND_PORT)], ["-u", path], [f"--u={path}"]):
            assert first.ctl("-q", *endpoint, config=False).stdout == "READY\n"

    def test_two_endpoints_are_refused(self, pair: Domain) -> None:
        assert pair.nodes[0].ctl("-q", "-i", pair.nodes[0].address, str(COMMAND_PORT)).returncode != 0

    def test_the_domain_requires_the_configuration_file(self, pair: Domain) -> None:
        path = f"{pair.nodes[0].directory}/cmd.sock"
        assert pair.nodes[0].ctl("-N", "-u", path, config=False).returncode != 0

    @pytest.mark.parametrize("option", ["-j", "-H"])
    def test_json_and_host_names_are_refused_without_the_domain(self, pair: Domain, option: str) -> None:
        assert pair.nodes[0].ctl("-q", option).returncode != 0

    def test_the_domain_is_printed_as_text(self, pair: Domain) -> None:
        lines = pair.nodes[0].text().splitlines()
        assert any(re.fullmatch(r"\d+/\d+/\d{4} \d\d:\d\d:\d\d\.\d{3}", line) for line in lines)
        nodes = lines[lines.index("Nodes:") + 1 :][:2]
        for index, (node, mark) in enumerate(zip(pair.nodes, "*-", strict=True)):
            pattern = rf"Node #{index} +[{mark}] {re.escape(node.address)} +[{mark}] READY +- Version: NO_GPU"
            assert re.fullmatch(pattern, nodes[index]), nodes[index]
        table = [line.split() for line in lines[lines.index("Nodes:") + 4 :]]
        assert table[:4] == [["Nodes", r"From\To", "0", "1"], ["0", "C", "C"], ["1", "C", "C"], []]
        assert lines[-1] == "Domain State: UP"

    def test_the_domain_is_printed_as_json(self, pair: Domain) -> None:
        content = json.loads(pair.nodes[1].ctl("-N", "-j", "-H").stdout)
        assert set(content) == {"nodes", "timestamp", "status"}
        assert list(content)[-1] == "status"
        assert content["status"] == "UP"
        assert set(content["nodes"]) == {"0", "1"}
        first, second = content["nodes"]["0"], pair.nodes[1].address
        assert (first["status"], first["host"], first["version"]) == ("READY", pair.nodes[0].address, "NO_GPU")
        assert {"hostName", "changed"} <= set(first)
        assert first["connections"]["1"] == {"host": second, "status": "CONNECTED", "changed": True}

    def test_a_missing_nodes_file_is_an_error(self, node: Node) -> None:
        node.write_config()
        node.nodes_file.unlink()
        result = node.ctl("-N")
        assert result.returncode != 0
        assert "Failed to read node configuration file" in result.stdout + result.stderr

    def test_a_domain_without_daemons_is_down(self, node: Node) -> None:
        node.write_config()
        assert node.ctl("-q").returncode != 0
        assert node.text().splitlines()[-1] == "Domain State: DOWN"

    def test_watching_the_state_ends_after_the_given_time(self, pair: Domain) -> None:
        assert pair.nodes[0].ctl("-s", "-t", "3000").stdout.split() == ["READY"]

    def test_watching_the_domain_continues_until_it_is_interrupted(self, pair: Domain) -> None:
        with pair.nodes[0].watching("-n") as process:
            assert process.stdout
            first_output = iter(process.stdout.readline, "Domain State: UP\n")
            assert "Nodes:\n" in list(first_output)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


class TestLoss:
    def test_a_hung_daemon_is_unavailable_until_it_continues(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        second.send(signal.SIGSTOP)
        domain.until_state("DEGRADED")
        text = first.text()
        assert re.search(r"Node #1 .* UNAVAILABLE", text)
        assert re.search(r"^ +1 +I +I$", text, re.MULTILINE)
        second.send(signal.SIGCONT)
        domain.until_state("UP")

    def test_a_killed_daemon_is_recovering_until_it_restarts(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        second.end(signal.SIGKILL)
        until(lambda: Equal(rows(first), [["C", "R"], ["I", "I"]]))
        second.start()
        domain.until_state("UP")

    def test_a_daemon_that_never_ran_was_never_connected(self, make_domain: MakeDomain) -> None:
        first = make_domain(2).nodes[0]
        first.start()
        until(first.ready)
        content = first.view()
        assert content["status"] == "DEGRADED"
        assert content["nodes"]["0"]["connections"]["1"]["status"] == "NEVER_CONNECTED"
        assert content["nodes"]["1"]["connections"]["0"]["status"] == "INVALID"

    def test_a_daemon_that_shuts_down_notifies_its_peers(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.start()
        domain.nodes[1].end()
        until(lambda: Equal(rows(domain.nodes[0])[0], ["C", "D"]))

    def test_daemons_with_different_nodes_files_do_not_communicate(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        with second.nodes_file.open("a") as file:
            file.write("192.0.2.1\n")
        for node in domain.nodes:
            node.start()
        until(lambda: Equal(rows(first)[0], ["C", "!M!"]))
        second.nodes_file.write_text(first.nodes_file.read_text())
        for node in domain.nodes:
            node.end()
            node.start()
        domain.until_state("UP")


class TestSignals:
    def test_the_nodes_file_is_read_only_at_start(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        first.nodes_file.write_text(f"{first.address}\n")
        first.send(signal.SIGUSR1)
        second.end()
        second.start()
        until(lambda: Equal(second.view()["status"], "UP"))

    def test_sigusr1_keeps_the_domain_up(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.start()
        for _ in range(3):
            domain.nodes[0].send(signal.SIGUSR1)
        domain.until_state("UP")
        assert domain.nodes[0].end() == 0

    def test_sighup_dumps_messages_below_the_log_level(self, node: Node) -> None:
        node.write_config(LOG_LEVEL=1)
        node.start()
        until(node.ready)
        before = node.log.stat().st_size
        node.send(signal.SIGHUP)
        until(lambda: node.log.stat().st_size > before)
        assert node.ready()


def rows(node: Node) -> list[list[str]]:
    """The cells of the connectivity table."""
    lines = node.text().splitlines()
    return [line.split()[1:] for line in lines if re.match(r" +\d", line)]
