"""Memory exchange between processes on several nodes, and what is lost when a process, daemon or node fails."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from imex_sandbox.softimex import memory
from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.peerstate import ConnectionState
from tests.sandbox.softimex.rack import Equal, Node, Rack
from tests.sandbox.softimex.workload import CHANNELS, Workload, create_channels
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]
StartWorkload = Callable[[Node, int | Path], Workload]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Three nodes that tests must not change; the third is in another partition."""
    rack = Rack(3)
    rack.nodes[2].set_hardware(partition="7b968a6d-c8aa-45e1-9e07-e1e51be99c31.2")
    for node in rack.nodes:
        create_channels(node, 0, 5, 7)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def pair(make_rack: MakeRack) -> Rack:
    """Two nodes that tests may break."""
    rack = make_rack(2)
    for node in rack.nodes:
        create_channels(node, 5)
    return rack


def exchange(start_workload: StartWorkload, rack: Rack) -> tuple[Workload, Workload, str]:
    """An exporter on the first node, an importer on the second that has read the memory, and the handle."""
    exporter, importer = start_workload(rack.nodes[0], 5), start_workload(rack.nodes[1], 5)
    handle = exporter.export(content="hello")
    importer.import_handle(handle)
    assert importer.read(5) == "hello"
    importer.call("open_view")
    return exporter, importer, handle


def assert_lost(importer: Workload) -> None:
    """Calls raise, not only the first time."""
    until(lambda: read_fails(importer))
    assert read_fails(importer)
    with pytest.raises(CudaError) as error:
        importer.call("write", "x")
    assert error.value.code == CudaError.INVALID_HANDLE


def assert_faults(importer: Workload) -> None:
    with pytest.raises(AssertionError, match="the process ended"):
        importer.call("read_view")
    code, errors = importer.end()
    assert code == -signal.SIGBUS
    assert "Bus error" in errors
    assert "read_view" in errors


def read_fails(importer: Workload) -> bool:
    try:
        assert importer.read(5) == "hello"
    except CudaError as error:
        return error.code == CudaError.INVALID_HANDLE
    return False


def has_reconnected(node: Node) -> bool:
    return "SIGUSR1: reconnecting" in node.log_text()


class TestExchange:
    def test_two_nodes_share_memory(self, rack: Rack, start_workload: StartWorkload) -> None:
        exporter, importer, _ = exchange(start_workload, rack)
        importer.call("write", "there")
        assert exporter.read(5) == "there"
        exporter.call("write", "again")
        assert importer.call("read_view") == "again"

    def test_two_processes_of_one_node_share_memory(self, rack: Rack, start_workload: StartWorkload) -> None:
        exporter, importer = start_workload(rack.nodes[0], 5), start_workload(rack.nodes[0], 5)
        importer.import_handle(exporter.export(content="local"))
        assert importer.read(5) == "local"

    def test_memory_of_odd_size_is_imported_by_several_processes(
        self, rack: Rack, start_workload: StartWorkload
    ) -> None:
        exporter = start_workload(rack.nodes[0], 7)
        handle = exporter.export(size=100_001, content="x" * 100_001)
        for node in rack.nodes[:2]:
            importer = start_workload(node, 7)
            importer.import_handle(handle)
            assert importer.read(100_001) == "x" * 100_001

    def test_the_channel_number_is_derived_from_the_file(self, rack: Rack, start_workload: StartWorkload) -> None:
        assert [start_workload(rack.nodes[0], number).call("number") for number in (0, 5, 7)] == [0, 5, 7]

    def test_an_invalid_gpu_or_size_is_refused_with_the_cuda_error(
        self, rack: Rack, start_workload: StartWorkload
    ) -> None:
        workload = start_workload(rack.nodes[0], 5)
        workload.call("allocate", 65536, 3)
        for size, gpu, code in ((65536, 4, CudaError.INVALID_DEVICE), (2**45, 0, CudaError.OUT_OF_MEMORY)):
            with pytest.raises(CudaError) as error:
                workload.call("allocate", size, gpu)
            assert error.value.code == code

    def test_a_node_with_a_broken_fabric_neither_exports_nor_grants_imports(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        pair.start()
        exporter, importer, handle = exchange(start_workload, pair)
        pair.nodes[0].set_hardware(state="broken")
        for workload, call, argument in ((exporter, "export", 65536), (importer, "import_handle", handle)):
            with pytest.raises(CudaError) as error:
                workload.call(call, argument, *([""] if call == "export" else []))
            assert error.value.code == CudaError.NOT_SUPPORTED
            assert "broken" in error.value.reason

    def test_numpy_arrays_share_the_memory_without_a_copy(self, rack: Rack) -> None:
        node = rack.nodes[0]
        path = node.root / CHANNELS / "channel5"
        with memory.open_channel(path, node.root / "run/client/imex.sock") as channel:
            mine = channel.allocate(4096)
            theirs = channel.import_handle(mine.export())
            mine.array("float32")[:] = 1.5
            assert theirs.array("float32").sum() == 1536
            assert theirs.array("float32").shape == (1024,)


class TestLoss:
    def test_importers_lose_freed_memory(self, rack: Rack, start_workload: StartWorkload) -> None:
        exporter, importer, _ = exchange(start_workload, rack)
        exporter.call("free")
        assert_lost(importer)
        assert_faults(importer)

    def test_lost_memory_cannot_be_restored(self, rack: Rack, start_workload: StartWorkload) -> None:
        exporter, importer, _ = exchange(start_workload, rack)
        exporter.call("free")
        assert_lost(importer)
        importer.call("extend_file")
        assert_lost(importer)
        assert importer.call("read_view") == "\0" * 5

    def test_memory_ends_with_the_process_that_exported_it(
        self, rack: Rack, start_workload: StartWorkload
    ) -> None:
        before = set(rack.fabric.iterdir())
        exporter, importer, _ = exchange(start_workload, rack)
        exporter.end()
        assert_lost(importer)
        assert_faults(importer)
        until(lambda: set(rack.fabric.iterdir()) <= before)

    @pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
    def test_a_daemon_that_restarts_loses_all_exports(
        self, pair: Rack, start_workload: StartWorkload, way: signal.Signals
    ) -> None:
        pair.start()
        exporter, importer, handle = exchange(start_workload, pair)
        pair.nodes[0].end(way)
        pair.nodes[0].start()
        assert_lost(importer)
        assert_faults(importer)
        with pytest.raises(CudaError, match="ended"):
            exporter.read(5)
        pair.until_up()
        with pytest.raises(CudaError, match="restarted") as error:
            start_workload(pair.nodes[1], 5).import_handle(handle)
        assert error.value.code == CudaError.INVALID_HANDLE

    def test_a_daemon_removes_the_memory_of_its_previous_instance(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        first = pair.nodes[0]
        first.start()
        first.until_ready()
        exporter = start_workload(first, 5)
        exporter.export(content="hello")
        exporter.call("open_view")
        left = set(pair.fabric.iterdir())
        first.kill()
        first.start()
        first.until_ready()
        assert not left & set(pair.fabric.iterdir())
        assert_faults(exporter)

    def test_memory_of_a_lost_node_ends_after_the_grace_time(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        for node in pair.nodes:
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=1)
        pair.start()
        exporter, importer, _ = exchange(start_workload, pair)
        pair.nodes[0].kill()
        exporter.end()
        assert_lost(importer)
        assert_faults(importer)
        pair.until_connection(1, 0, ConnectionState.DISCONNECTED)

    def test_memory_of_a_lost_daemon_remains_within_the_grace_time(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        pair.start()
        _, importer, _ = exchange(start_workload, pair)
        pair.nodes[0].kill()
        pair.until_connection(1, 0, ConnectionState.RECOVERING)
        assert importer.read(5) == "hello"

    def test_a_network_fault_beyond_the_grace_time_affects_only_the_two_nodes(
        self, make_rack: MakeRack, start_workload: StartWorkload
    ) -> None:
        rack = make_rack(3)
        for node in rack.nodes:
            create_channels(node, 5)
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=1)
        rack.start()
        exporter, importer, handle = exchange(start_workload, rack)
        other_importer = start_workload(rack.nodes[2], 5)
        other_importer.import_handle(handle)
        rack.nodes[1].block_network_to(rack.nodes[0])
        assert_lost(importer)
        with pytest.raises(CudaError, match="not connected") as error:
            importer.import_handle(handle)
        assert error.value.code == CudaError.NOT_SUPPORTED
        assert (other_importer.read(5), exporter.read(5)) == ("hello", "hello")

    def test_reconnecting_keeps_the_imports(self, pair: Rack, start_workload: StartWorkload) -> None:
        for node in pair.nodes:
            node.write_config(IMEX_NODE_DISCONNECTED_GRACE_TIME=0)
        pair.start()
        _, importer, handle = exchange(start_workload, pair)
        for node in pair.nodes:
            node.send(signal.SIGUSR1)
            until(partial(has_reconnected, node))
        pair.until_up()
        assert importer.read(5) == "hello"
        importer.import_handle(handle)


class TestRecovery:
    def test_an_importer_that_restarted_is_no_longer_recorded(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(start_workload, pair)
        assert (first.root / "run/persist.dat").exists()
        second.kill()
        second.start()
        until(lambda: not (first.root / "run/persist.dat").exists())

    def test_after_an_unclean_exit_the_daemon_waits_for_the_importers(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(start_workload, pair)
        first.kill()
        second.kill()
        first.start()
        until(lambda: Equal(first.state(), "WAITING_FOR_RECOVERY\n"))
        with pytest.raises(CudaError, match="not READY"):
            start_workload(first, 5).export()
        second.start()
        pair.until_up()

    def test_with_a_quorum_of_none_the_daemon_does_not_wait_for_importers(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        first, second = pair.nodes
        pair.start()
        exchange(start_workload, pair)
        first.kill()
        second.kill()
        first.write_config(IMEX_WAIT_FOR_QUORUM="NONE")
        first.start()
        first.until_ready()

    def test_no_recovery_is_needed_after_release_clean_exit_or_a_new_node_map(
        self, pair: Rack, start_workload: StartWorkload
    ) -> None:
        first, second = pair.nodes
        pair.start()
        _, importer, _ = exchange(start_workload, pair)
        saved = first.root / "run/persist.dat"
        assert saved.exists()
        importer.call("release")
        until(lambda: not saved.exists())
        exchange(start_workload, pair)
        first.stop()
        assert not saved.exists()
        first.start()
        pair.until_up()
        exchange(start_workload, pair)
        first.kill()
        second.kill()
        first.nodes_file.write_text("".join(f"{name}\n" for name in [*pair.names, "imex-test-more"]))
        first.start()
        first.until_ready()
