"""The connections of real daemons when peers end, hang, change or cannot be reached."""

import signal
import time
from collections.abc import Callable

import pytest

from imex_sandbox.softimex.peerstate import ConnectionState
from tests.sandbox.softimex.rack import Node, Rack
from tests.sandbox.softimex.workload import Workload, create_channels
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]


def test_connections_to_a_killed_daemon_are_recovering_until_it_restarts(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.start()
    rack.nodes[2].kill()
    rack.until_letters("CCR", "CCR", "III")
    rack.nodes[2].start()
    rack.until_letters("CCC", "CCC", "CCC")


def test_a_daemon_that_shuts_down_is_disconnected(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.start()
    rack.nodes[1].stop()
    rack.until_letters("CD", "II")


@pytest.mark.parametrize("grace", [0, 1])
def test_a_lost_daemon_is_disconnected_after_the_grace_time(make_rack: MakeRack, grace: int) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=grace)
    rack.start()
    rack.nodes[1].kill()
    rack.until_letters("CD", "II")
    assert ("RECOVERING" in rack.nodes[0].log_text()) == bool(grace)


def test_a_hung_daemon_is_recovering_until_it_continues(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.start()
    rack.nodes[1].send(signal.SIGSTOP)
    rack.until_connection(0, 1, ConnectionState.RECOVERING)
    rack.nodes[1].send(signal.SIGCONT)
    rack.until_letters("CC", "CC")


def test_both_daemons_notice_a_blocked_network_and_reconnect_afterwards(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.start()
    rack.nodes[0].block_network_to(rack.nodes[1])
    rack.until_letters("CRC", "RCC", "CCC")
    assert "UNAVAILABLE" in rack.nodes[0].ctl("-N").stdout
    rack.nodes[0].block_network_to()
    rack.until_letters("CCC", "CCC", "CCC")


def test_a_network_delay_delays_imports(
    make_rack: MakeRack, start_workload: Callable[[Node, int], Workload]
) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        create_channels(node, 5)
    rack.nodes[0].set_network(**{rack.nodes[1].address: 300})
    rack.start()
    handle, importer = start_workload(rack.nodes[1], 5).export(), start_workload(rack.nodes[0], 5)
    until(lambda: min(seconds_of(lambda: importer.import_handle(handle)) for _ in range(3)) >= 0.3)


def seconds_of(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_daemon_with_another_version_is_refused_until_it_restarts_with_the_same(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.nodes[1].set_hardware(version="570.172.08")
    for node in rack.nodes:
        node.start()
    rack.until_letters("C!V!", "!V!C")
    rack.nodes[1].kill()
    rack.nodes[1].set_hardware()
    rack.nodes[1].start()
    rack.until_letters("CC", "CC")


def test_a_daemon_with_another_node_map_is_refused_until_both_have_restarted(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    first, second = rack.nodes
    second.nodes_file.write_text("".join(f"{name}\n" for name in [*rack.names, "imex-test-other"]))
    for node in rack.nodes:
        node.start()
    until(lambda: "NODE_MAP_MISMATCH" in first.log_text() and "NODE_MAP_MISMATCH" in second.log_text())
    second.kill()
    second.nodes_file.write_text(first.nodes_file.read_text())
    second.start()
    rack.until_letters("C!M!", "!M!C")
    first.kill()
    first.start()
    rack.until_letters("CC", "CC")


def test_a_node_that_does_not_exist_is_never_connected(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.map({0: rack.nodes[0].address})
    rack.nodes[0].start()
    rack.until_letters("CN", "II")


def test_a_node_that_answers_at_the_address_of_another_is_not_connected(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.nodes[2].start()
    rack.nodes[0].replace(
        "hosts", f"{rack.nodes[0].address} {rack.names[0]}\n{rack.nodes[2].address} {rack.names[1]}\n"
    )
    rack.nodes[0].start()
    rack.nodes[0].until_ready()
    until(lambda: "node 2 answered at this address" in rack.nodes[0].verbose_log())
    rack.until_connection(0, 1, ConnectionState.NEVER_CONNECTED)
