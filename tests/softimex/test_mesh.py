"""What happens to the connections of real daemons when peers end, hang, change or are cut off."""

import signal
import time
from collections.abc import Callable

import pytest

from imex_dra.softimex.states import LinkState
from tests.softimex.rack import Node, Rack, eventually
from tests.softimex.workload import Workload, give_channels

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]


def becomes(rack: Rack, *letters: str) -> None:
    eventually(lambda: rack.letters() == list(letters), seen=rack.letters)


def test_a_killed_daemon_leaves_recovering_links_and_comes_back(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.start()
    rack.nodes[2].kill()
    becomes(rack, "CCR", "CCR", "III")
    rack.nodes[2].start()
    becomes(rack, "CCC", "CCC", "CCC")


def test_a_daemon_that_says_goodbye_is_disconnected(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.start()
    rack.nodes[1].stop()
    becomes(rack, "CD", "II")


@pytest.mark.parametrize("grace", [0, 1])
def test_a_lost_daemon_is_given_up_after_the_grace_time(make_rack: MakeRack, grace: int) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=grace)
    rack.start()
    rack.nodes[1].kill()
    becomes(rack, "CD", "II")
    assert ("RECOVERING" in rack.nodes[0].log_text()) == bool(grace)


def test_a_hung_daemon_is_lost_and_found_again_as_the_same_instance(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.start()
    rack.nodes[1].send(signal.SIGSTOP)
    rack.until_link(0, 1, LinkState.RECOVERING)
    rack.nodes[1].send(signal.SIGCONT)
    becomes(rack, "CC", "CC")


def test_a_cut_cable_is_noticed_on_both_ends_and_mended(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.start()
    rack.nodes[0].cut(rack.nodes[1])
    becomes(rack, "CRC", "RCC", "CCC")
    assert "UNAVAILABLE" in rack.nodes[0].ctl("-N").stdout
    rack.nodes[0].cut()
    becomes(rack, "CCC", "CCC", "CCC")


def test_a_slow_cable_is_slow_and_still_a_cable(make_rack: MakeRack, on: Callable[[Node, int], Workload]) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        give_channels(node, 5)
    rack.nodes[0].set_network(**{rack.nodes[1].address: 300})
    rack.start()
    handle, importer = on(rack.nodes[1], 5).export(), on(rack.nodes[0], 5)
    eventually(lambda: min(seconds_of(lambda: importer.attach(handle)) for _ in range(3)) >= 0.3)


def seconds_of(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_another_version_is_refused_until_it_is_the_same(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.nodes[1].set_hardware(version="570.172.08")
    for node in rack.nodes:
        node.start()
    becomes(rack, "C!V!", "!V!C")
    rack.nodes[1].kill()
    rack.nodes[1].set_hardware()
    rack.nodes[1].start()
    becomes(rack, "CC", "CC")


def test_another_node_map_is_refused_until_all_have_restarted(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    first, second = rack.nodes
    second.nodes_file.write_text("".join(f"{name}\n" for name in [*rack.names, "imex-test-other"]))
    for node in rack.nodes:
        node.start()
    eventually(lambda: "NODE_MAP_MISMATCH" in first.log_text() and "NODE_MAP_MISMATCH" in second.log_text())
    second.kill()
    second.nodes_file.write_text(first.nodes_file.read_text())
    second.start()
    becomes(rack, "C!M!", "!M!C")
    first.kill()
    first.start()
    becomes(rack, "CC", "CC")


def test_an_empty_slot_is_never_connected_and_the_domain_degraded(make_rack: MakeRack) -> None:
    rack = make_rack(2)
    rack.map({0: rack.nodes[0].address})
    rack.nodes[0].start()
    becomes(rack, "CN", "II")


def test_the_wrong_node_behind_a_name_is_not_taken_for_the_right_one(make_rack: MakeRack) -> None:
    rack = make_rack(3)
    rack.nodes[2].start()
    rack.nodes[0].replace(
        "hosts", f"{rack.nodes[0].address} {rack.names[0]}\n{rack.nodes[2].address} {rack.names[1]}\n"
    )
    rack.nodes[0].start()
    eventually(lambda: rack.nodes[0].state() == "READY\n")
    eventually(lambda: "node 2 answers there" in rack.nodes[0].verbose_log())
    rack.until_link(0, 1, LinkState.NEVER_CONNECTED)
