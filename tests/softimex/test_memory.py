"""Memory that is really exchanged between processes on nodes, and what happens to it when something is lost."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.states import LinkState
from tests.softimex.rack import Node, Rack, eventually
from tests.softimex.workload import Workload, give_channels

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]
MakeWorkload = Callable[[Node, int | Path], Workload]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Three nodes; the third is in another partition. Nobody breaks them."""
    rack = Rack(3)
    rack.nodes[2].set_hardware(partition="7b968a6d-c8aa-45e1-9e07-e1e51be99c31.2")
    for node in rack.nodes:
        give_channels(node, 0, 5, 7)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def pair(make_rack: MakeRack) -> Rack:
    """Two nodes to be broken."""
    rack = make_rack(2)
    for node in rack.nodes:
        give_channels(node, 5)
    return rack


def exchange(on: MakeWorkload, rack: Rack) -> tuple[Workload, Workload, str]:
    """An exporter on the first node, an importer on the second that has read its memory, and the handle."""
    exporter, importer = on(rack.nodes[0], 5), on(rack.nodes[1], 5)
    handle = exporter.export(content="hello")
    importer.attach(handle)
    assert importer.read(5) == "hello"
    importer.call("hold_view")
    return exporter, importer, handle


def assert_lost(importer: Workload) -> None:
    """Calls raise, again and again."""
    eventually(lambda: raises(importer))
    assert raises(importer)
    with pytest.raises(CudaError) as error:
        importer.call("write", "x")
    assert error.value.code == CudaError.INVALID_HANDLE


def assert_faults(importer: Workload) -> None:
    with pytest.raises(AssertionError, match="the process ended"):
        importer.call("touch_view")
    code, errors = importer.end()
    assert code == -signal.SIGBUS
    assert "Bus error" in errors
    assert "touch_view" in errors


def raises(importer: Workload) -> bool:
    try:
        assert importer.read(5) == "hello"
    except CudaError as error:
        return error.code == CudaError.INVALID_HANDLE
    return False


def has_reconnected(node: Node) -> bool:
    return "made anew" in node.log_text()


class TestExchange:
    def test_two_nodes_see_the_same_memory(self, rack: Rack, on: MakeWorkload) -> None:
        exporter, importer, _ = exchange(on, rack)
        importer.call("write", "there")
        assert exporter.read(5) == "there"
        exporter.call("write", "again")
        assert importer.call("touch_view") == "again"

    def test_two_processes_of_one_node_do_too(self, rack: Rack, on: MakeWorkload) -> None:
        exporter, importer = on(rack.nodes[0], 5), on(rack.nodes[0], 5)
        importer.attach(exporter.export(content="local"))
        assert importer.read(5) == "local"

    def test_importers_may_be_many_and_sizes_odd(self, rack: Rack, on: MakeWorkload) -> None:
        exporter = on(rack.nodes[0], 7)
        handle = exporter.export(size=100_001, content="x" * 100_001)
        for node in rack.nodes[:2]:
            importer = on(node, 7)
            importer.attach(handle)
            assert importer.read(100_001) == "x" * 100_001

    def test_a_channel_is_known_by_its_file(self, rack: Rack, on: MakeWorkload) -> None:
        assert [on(rack.nodes[0], number).call("number") for number in (0, 5, 7)] == [0, 5, 7]

    def test_a_wrong_gpu_or_size_is_refused_as_cuda_does(self, rack: Rack, on: MakeWorkload) -> None:
        workload = on(rack.nodes[0], 5)
        workload.call("allocate", 65536, 3)
        for size, gpu, code in ((65536, 4, CudaError.INVALID_DEVICE), (2**45, 0, CudaError.OUT_OF_MEMORY)):
            with pytest.raises(CudaError) as error:
                workload.call("allocate", size, gpu)
            assert error.value.code == code

    def test_a_broken_fabric_supports_nothing(self, pair: Rack, on: MakeWorkload) -> None:
        pair.start()
        exporter, importer, handle = exchange(on, pair)
        pair.nodes[0].set_hardware(state="broken")
        for workload, call, argument in ((exporter, "export", 65536), (importer, "attach", handle)):
            with pytest.raises(CudaError) as error:
                workload.call(call, argument, *([""] if call == "export" else []))
            assert error.value.code == CudaError.NOT_SUPPORTED
            assert "broken" in error.value.why

    def test_numpy_sees_the_memory_without_a_copy(self, rack: Rack) -> None:
        pytest.importorskip("numpy")
        from imex_dra.softimex import memory

        node = rack.nodes[0]
        path = node.root / "dev/nvidia-caps-imex-channels/channel5"
        with memory.open_channel(path, node.root / "run/client/imex.sock") as channel:
            mine = channel.allocate(4096)
            theirs = channel.attach(mine.export())
            mine.array("float32")[:] = 1.5
            assert theirs.array("float32").sum() == 1536
            assert theirs.array("float32").shape == (1024,)


class TestLoss:
    def test_freed_memory_is_gone_for_importers(self, rack: Rack, on: MakeWorkload) -> None:
        exporter, importer, _ = exchange(on, rack)
        exporter.call("free")
        assert_lost(importer)
        assert_faults(importer)

    def test_memory_that_is_gone_cannot_be_made_good_again(self, rack: Rack, on: MakeWorkload) -> None:
        exporter, importer, _ = exchange(on, rack)
        exporter.call("free")
        assert_lost(importer)
        importer.call("lengthen")
        assert_lost(importer)
        assert importer.call("touch_view") == "\0" * 5

    def test_a_process_that_ends_takes_its_memory_with_it(self, rack: Rack, on: MakeWorkload) -> None:
        before = set(rack.fabric.iterdir())
        exporter, importer, _ = exchange(on, rack)
        exporter.end()
        assert_lost(importer)
        assert_faults(importer)
        eventually(lambda: set(rack.fabric.iterdir()) <= before)

    @pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
    def test_a_daemon_that_restarts_has_lost_all_it_exported(
        self, pair: Rack, on: MakeWorkload, way: signal.Signals
    ) -> None:
        pair.start()
        exporter, importer, handle = exchange(on, pair)
        pair.nodes[0].end(way)
        pair.nodes[0].start()
        assert_lost(importer)
        assert_faults(importer)
        with pytest.raises(CudaError, match="ended"):
            exporter.read(5)
        pair.until_up()
        with pytest.raises(CudaError, match="restarted") as error:
            on(pair.nodes[1], 5).attach(handle)
        assert error.value.code == CudaError.INVALID_HANDLE

    def test_a_daemon_clears_what_its_last_instance_left(self, pair: Rack, on: MakeWorkload) -> None:
        first = pair.nodes[0]
        first.start()
        eventually(lambda: first.state() == "READY\n")
        exporter = on(first, 5)
        exporter.export(content="hello")
        exporter.call("hold_view")
        left = set(pair.fabric.iterdir())
        first.kill()
        first.start()
        eventually(lambda: first.state() == "READY\n")
        assert not left & set(pair.fabric.iterdir())
        assert_faults(exporter)

    def test_a_node_that_stays_away_is_given_up_after_the_grace_time(self, pair: Rack, on: MakeWorkload) -> None:
        for node in pair.nodes:
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=1)
        pair.start()
        exporter, importer, _ = exchange(on, pair)
        pair.nodes[0].kill()
        exporter.end()
        assert_lost(importer)
        assert_faults(importer)
        pair.until_link(1, 0, LinkState.DISCONNECTED)

    def test_within_the_grace_time_a_lost_daemon_takes_nothing_away(self, pair: Rack, on: MakeWorkload) -> None:
        pair.start()
        _, importer, _ = exchange(on, pair)
        pair.nodes[0].kill()
        pair.until_link(1, 0, LinkState.RECOVERING)
        assert importer.read(5) == "hello"

    def test_a_cut_beyond_the_grace_time_hurts_nobody_else(self, make_rack: MakeRack, on: MakeWorkload) -> None:
        rack = make_rack(3)
        for node in rack.nodes:
            give_channels(node, 5)
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=1)
        rack.start()
        exporter, importer, handle = exchange(on, rack)
        bystander = on(rack.nodes[2], 5)
        bystander.attach(handle)
        rack.nodes[1].cut(rack.nodes[0])
        assert_lost(importer)
        with pytest.raises(CudaError, match="not connected") as error:
            importer.attach(handle)
        assert error.value.code == CudaError.NOT_SUPPORTED
        assert (bystander.read(5), exporter.read(5)) == ("hello", "hello")

    def test_reconnecting_takes_nothing_away(self, pair: Rack, on: MakeWorkload) -> None:
        for node in pair.nodes:
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=0)
        pair.start()
        _, importer, handle = exchange(on, pair)
        for node in pair.nodes:
            node.send(signal.SIGUSR1)
            eventually(partial(has_reconnected, node))
        pair.until_up()
        assert importer.read(5) == "hello"
        importer.attach(handle)


class TestRecovery:
    def test_an_importer_that_restarts_is_not_awaited(self, pair: Rack, on: MakeWorkload) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(on, pair)
        assert (first.root / "run/persist.dat").exists()
        second.kill()
        second.start()
        eventually(lambda: not (first.root / "run/persist.dat").exists())

    def test_after_an_unclean_exit_the_importers_are_awaited(self, pair: Rack, on: MakeWorkload) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(on, pair)
        first.kill()
        second.kill()
        first.start()
        eventually(lambda: first.state() == "WAITING_FOR_RECOVERY\n")
        with pytest.raises(CudaError, match="not READY"):
            on(first, 5).export()
        second.start()
        pair.until_up()

    def test_a_quorum_of_none_waits_for_nobody(self, pair: Rack, on: MakeWorkload) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(on, pair)
        first.kill()
        second.kill()
        first.write_config(IMEX_WAIT_FOR_QUORUM="NONE")
        first.start()
        eventually(lambda: first.state() == "READY\n")

    def test_a_clean_exit_another_map_or_given_back_memory_needs_no_recovery(
        self, pair: Rack, on: MakeWorkload
    ) -> None:
        first, second = pair.nodes
        pair.start()
        _, importer, _ = exchange(on, pair)
        saved = first.root / "run/persist.dat"
        assert saved.exists()
        importer.call("release")
        eventually(lambda: not saved.exists())
        exchange(on, pair)
        first.stop()
        assert not saved.exists()
        first.start()
        pair.until_up()
        exchange(on, pair)
        first.kill()
        second.kill()
        first.nodes_file.write_text("".join(f"{name}\n" for name in [*pair.names, "imex-test-more"]))
        first.start()
        eventually(lambda: first.state() == "READY\n")
