"""The documented interface of `nvidia-imex` and `nvidia-imex-ctl`: configuration, files, signals, text, JSON.

Only what documents and field reports say, over nothing but these interfaces: docs/softimex.md tells how to point
it at the original, `nvidia-imex --nogpu`. What soft IMEX adds of its own is in `test_daemon.py`.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.softimex.installation import COMMAND_PORT, Domain, Node, eventually

pytestmark = pytest.mark.timeout(300)

MakeDomain = Callable[[int], Domain]


@pytest.fixture(scope="module")
def pair() -> Iterator[Domain]:
    """Two nodes that are up; tests here only look at them."""
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
    def test_it_is_ready_and_ends_in_order(self, node: Node, number: signal.Signals) -> None:
        node.start()
        eventually(node.ready)
        assert node.end(number) == 0
        assert node.ctl("-q").returncode != 0

    def test_it_goes_to_the_background_when_told_so(self, node: Node) -> None:
        node.settings["DAEMONIZE"] = 1
        node.settings["LOG_FILE_NAME"] = node.log
        assert node.run().returncode == 0
        eventually(node.ready)
        eventually(lambda: len(node.daemons()) == 1, seen=node.daemons)
        (pid,) = node.daemons()
        subprocess.run(["kill", "-TERM", str(pid)], check=True)
        eventually(lambda: not node.daemons())
        assert node.log.stat().st_size > 0

    def test_an_unknown_way_to_encrypt_stops_the_start(self, node: Node) -> None:
        node.write_config(IMEX_ENABLE_AUTH_ENCRYPTION=1, IMEX_AUTH_ENCRYPTION_MODE="ROT13")
        assert node.run().returncode != 0

    def test_no_matching_interface_stops_the_start(self, node: Node) -> None:
        node.nodes_file.write_text("192.0.2.1\n192.0.2.2\n")
        result = node.run()
        assert result.returncode != 0
        assert re.search("no matching network interface", result.stdout + result.stderr, re.IGNORECASE)

    @pytest.mark.parametrize("name", ["", "/does/not/exist/log"])
    def test_without_a_log_file_it_logs_to_stderr_that_there_is_no_gpu(self, node: Node, name: str) -> None:
        node.write_config(LOG_FILE_NAME=name)
        node.start()
        eventually(node.ready)
        assert re.search("no gpu mode", node.log.read_text(), re.IGNORECASE)

    def test_the_port_may_be_given_on_the_command_line(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.nodes[0].start("-p", "50100")
        domain.nodes[1].start("--port", "50100")
        domain.until("UP")


class TestCtl:
    def test_q_prints_the_state_and_nothing_else(self, pair: Domain) -> None:
        result = pair.nodes[0].ctl("-q")
        assert (result.returncode, result.stdout, result.stderr) == (0, "READY\n", "")

    def test_a_daemon_is_asked_by_address_or_unix_socket(self, pair: Domain) -> None:
        first, second = pair.nodes
        path = f"{first.directory}/cmd.sock"
        for where in (["-i", second.address, str(COMMAND_PORT)], ["-u", path], [f"--u={path}"]):
            assert first.ctl("-q", *where, config=False).stdout == "READY\n"

    def test_only_one_way_to_ask_is_allowed(self, pair: Domain) -> None:
        assert pair.nodes[0].ctl("-q", "-i", pair.nodes[0].address, str(COMMAND_PORT)).returncode != 0

    def test_the_domain_needs_the_configuration(self, pair: Domain) -> None:
        path = f"{pair.nodes[0].directory}/cmd.sock"
        assert pair.nodes[0].ctl("-N", "-u", path, config=False).returncode != 0

    @pytest.mark.parametrize("option", ["-j", "-H"])
    def test_json_and_host_names_are_for_the_domain_only(self, pair: Domain, option: str) -> None:
        assert pair.nodes[0].ctl("-q", option).returncode != 0

    def test_the_text_of_the_domain(self, pair: Domain) -> None:
        lines = pair.nodes[0].text().splitlines()
        assert any(re.fullmatch(r"\d+/\d+/\d{4} \d\d:\d\d:\d\d\.\d{3}", line) for line in lines)
        nodes = lines[lines.index("Nodes:") + 1 :][:2]
        for slot, (node, mark) in enumerate(zip(pair.nodes, "*-", strict=True)):
            pattern = rf"Node #{slot} +[{mark}] {re.escape(node.address)} +[{mark}] READY +- Version: NO_GPU"
            assert re.fullmatch(pattern, nodes[slot]), nodes[slot]
        table = [line.split() for line in lines[lines.index("Nodes:") + 4 :]]
        assert table[:4] == [["Nodes", r"From\To", "0", "1"], ["0", "C", "C"], ["1", "C", "C"], []]
        assert lines[-1] == "Domain State: UP"

    def test_the_json_of_the_domain(self, pair: Domain) -> None:
        content = json.loads(pair.nodes[1].ctl("-N", "-j", "-H").stdout)
        assert set(content) == {"nodes", "timestamp", "status"}
        assert list(content)[-1] == "status"
        assert content["status"] == "UP"
        assert set(content["nodes"]) == {"0", "1"}
        first, second = content["nodes"]["0"], pair.nodes[1].address
        assert (first["status"], first["host"], first["version"]) == ("READY", pair.nodes[0].address, "NO_GPU")
        assert {"hostName", "changed"} <= set(first)
        assert first["connections"]["1"] == {"host": second, "status": "CONNECTED", "changed": True}

    def test_a_missing_nodes_file_is_named(self, node: Node) -> None:
        node.write_config()
        node.nodes_file.unlink()
        result = node.ctl("-N")
        assert result.returncode != 0
        assert "Failed to read node configuration file" in result.stdout + result.stderr

    def test_a_domain_that_nobody_is_in_is_down(self, node: Node) -> None:
        node.write_config()
        assert node.ctl("-q").returncode != 0
        assert node.text().splitlines()[-1] == "Domain State: DOWN"

    def test_a_subscription_ends_with_its_time(self, pair: Domain) -> None:
        assert pair.nodes[0].ctl("-s", "-t", "300").stdout.split() == ["READY"]

    def test_a_continuous_view_goes_on_until_it_is_interrupted(self, pair: Domain) -> None:
        with pair.nodes[0].watching("-n") as process:
            assert process.stdout
            until_up = iter(process.stdout.readline, "Domain State: UP\n")
            assert "Nodes:\n" in list(until_up)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


class TestLoss:
    def test_a_daemon_that_hangs_is_unavailable_until_it_goes_on(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        second.send(signal.SIGSTOP)
        domain.until("DEGRADED")
        text = first.text()
        assert re.search(r"Node #1 .* UNAVAILABLE", text)
        assert re.search(r"^ +1 +I +I$", text, re.MULTILINE)
        second.send(signal.SIGCONT)
        domain.until("UP")

    def test_a_daemon_that_was_killed_is_recovering_until_it_is_back(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        second.end(signal.SIGKILL)
        eventually(lambda: [row[1:] for row in rows(first)] == [["C", "R"], ["I", "I"]], seen=first.text)
        second.start()
        domain.until("UP")

    def test_one_who_was_never_there_was_never_connected(self, make_domain: MakeDomain) -> None:
        first = make_domain(2).nodes[0]
        first.start()
        eventually(first.ready)
        content = first.view()
        assert content["status"] == "DEGRADED"
        assert content["nodes"]["0"]["connections"]["1"]["status"] == "NEVER_CONNECTED"
        assert content["nodes"]["1"]["connections"]["0"]["status"] == "INVALID"

    def test_one_that_shuts_down_tells_its_peers(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.start()
        domain.nodes[1].end()
        eventually(lambda: rows(domain.nodes[0])[0][1:] == ["C", "D"], seen=domain.nodes[0].text)

    def test_daemons_with_different_nodes_files_never_talk(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        with second.nodes_file.open("a") as file:
            file.write("192.0.2.1\n")
        for node in domain.nodes:
            node.start()
        eventually(lambda: rows(first)[0][1:] == ["C", "!M!"], seen=first.text)
        second.nodes_file.write_text(first.nodes_file.read_text())
        for node in domain.nodes:
            node.end()
            node.start()
        domain.until("UP")


class TestSignals:
    def test_the_nodes_file_is_read_only_at_start(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        first, second = domain.nodes
        domain.start()
        first.nodes_file.write_text(f"{first.address}\n")
        first.send(signal.SIGUSR1)
        second.end()
        second.start()
        eventually(lambda: second.view()["status"] == "UP", seen=second.text)

    def test_usr1_disturbs_nobody(self, make_domain: MakeDomain) -> None:
        domain = make_domain(2)
        domain.start()
        for _ in range(3):
            domain.nodes[0].send(signal.SIGUSR1)
        domain.until("UP")
        assert domain.nodes[0].end() == 0

    def test_hup_dumps_what_the_log_level_keeps_back(self, node: Node) -> None:
        node.write_config(LOG_LEVEL=1)
        node.start()
        eventually(node.ready)
        before = node.log.stat().st_size
        node.send(signal.SIGHUP)
        eventually(lambda: node.log.stat().st_size > before)
        assert node.ready()


def rows(node: Node) -> list[list[str]]:
    """The connectivity matrix: a row's number, then its letters."""
    lines = node.text().splitlines()
    return [line.split() for line in lines if re.match(r" +\d", line)]
