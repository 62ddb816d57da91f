"""An nvidia-imex that the host runs is observed: two daemons of soft IMEX, with one node list."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import HostNodeList, ImexState
from imex_dra.base.errors import Misconfigured
from imex_dra.daemon.hostdaemon import (
    HostConfig,
    HostDaemon,
    HostView,
    daemon_state,
    host_ctl_command,
    read_node_list,
)
from imex_dra.daemon.state import Connections, DaemonState, OwnReport, PollIntervals, Readiness
from imex_dra.imex.ctl import Connection, DomainNode, DomainView, ImexCtl
from imex_dra.imex.memberlist import MemberList
from tests.daemon.simulatednode import PARTITION, STOPS_WITH_PARENT, Rack, SimulatedNode
from tests.waiting import until_async


class Host:
    """A node whose host runs nvidia-imex, and an observer of it."""

    def __init__(self, rack: Rack, number: int) -> None:
        self.node = SimulatedNode(rack, number)
        self.rack, self.number = rack, number
        self.directory = self.node.root.path / "etc/nvidia-imex"
        self.directory.mkdir(parents=True)
        self.config = self.directory / "config.cfg"
        self.states: list[DaemonState] = []
        intervals = PollIntervals(starting=0.1, connecting=0.2, steady=0.5)
        ctl = ImexCtl(self.node.soft_imex("ctl"), timeout=30)
        # Soft IMEX takes paths as they are, so the root of its configuration is that of this machine.
        self.config_of_host = HostConfig(Path("/"), str(self.config))
        self.daemon = HostDaemon(self.config_of_host, ctl, self.states.append, poll_intervals=intervals)

    def configure(self, *entries: str) -> None:
        nodes = self.directory / "nodes_config.cfg"
        nodes.write_text("# of the host\n" + "".join(f"{entry}\n" for entry in entries))
        own = self.rack.address(self.number)
        self.config.write_text(
            f"DAEMONIZE=0\nLOG_FILE_NAME=\nIMEX_NODE_CONFIG_FILE={nodes}\n"
            f"IMEX_CMD_BIND_INTERFACE_IP={own}\nIMEX_CMD_PORT=50005\n"
        )

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        command = [*STOPS_WITH_PARENT, *self.node.soft_imex("daemon"), "-c", str(self.config)]
        with (self.rack.directory / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    @asynccontextmanager
    async def observed(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.daemon.run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def until(self, condition: Callable[[DaemonState], object]) -> DaemonState:
        try:
            await until_async(lambda: self.states and condition(self.states[-1]))
        except AssertionError as error:
            log = (self.rack.directory / "log").read_text()
            raise AssertionError(f"{error}; last: {self.states[-1:]}; log: {log}") from None
        return self.states[-1]

    def files(self) -> dict[str, bytes]:
        """All that the host has, apart from what its own daemon writes."""
        root = self.node.root.path
        paths = (path for path in root.rglob("*") if path.is_file() and root / "run" not in path.parents)
        return {str(path): path.read_bytes() for path in paths}


async def test_the_daemon_of_the_host_is_observed_and_nothing_is_written(rack: Rack) -> None:
    one, other = Host(rack, 0), Host(rack, 1)
    # The order of the host, not that of the names.
    entries = [rack.address(5), rack.address(1), rack.address(0)]
    for host in (one, other):
        host.configure(*entries)
    files = one.files()
    async with one.observed(), other.observed():
        one.daemon.expect(PARTITION, None)
        assert (await one.until(lambda state: state.host_list)).state is ImexState.UNAVAILABLE
        with one.running() as process, other.running():
            state = await one.until(lambda state: state.connected == (1,))
            assert (state.state, state.index, state.partition) == (ImexState.READY, 2, PARTITION)
            assert state.generation == 0, "without a member list there is nothing to confirm"
            assert state.host_list
            assert state.host_list.size == 3
            other.daemon.expect(PARTITION, None)
            assert (await other.until(lambda state: state.connected == (2,))).host_list == state.host_list

            alone = rack.member_list(2, 2, generation=7)
            one.daemon.expect(PARTITION, alone)
            state = await one.until(lambda state: state.problem)
            assert f"no members of the partition (1: {rack.address(1)})" in state.problem
            assert state.generation == 0
            one.daemon.expect(PARTITION, rack.member_list(2, 1, 2, generation=8))
            assert (await one.until(lambda state: state.generation == 8)).problem == ""

            one.daemon.expect(PARTITION, rack.member_list(0, 0, 1, generation=9))
            state = await one.until(lambda state: state.problem)
            assert (state.index, state.generation) == (2, 8), "the controller has another index"
            assert process.poll() is None
            assert one.files() == files
        await one.until(lambda state: state.state is ImexState.UNAVAILABLE)
        assert one.files() == files
        assert not one.node.root.imex.exists(), "the directory of the supervisor is not used"


async def test_another_list_has_another_digest_and_an_unreadable_one_says_why(rack: Rack) -> None:
    host = Host(rack, 0)
    host.configure(rack.address(0), rack.address(1))
    async with host.observed():
        before = await host.until(lambda state: state.host_list)
        host.configure(rack.address(1), rack.address(0))
        after = await host.until(lambda state: state.host_list != before.host_list)
        assert after.host_list
        assert after.host_list.size == 2
        (host.directory / "nodes_config.cfg").unlink()
        state = await host.until(lambda state: state.problem)
        assert (
            "nodes_config.cfg, which the host's nvidia-imex reads, cannot be read: No such file" in state.problem
        )
        assert state.host_list == HostNodeList()


def view(connected: Sequence[int] | None, index: int | None = 0, *, by_one_end: Sequence[int] = ()) -> HostView:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = Connections(now, None if connected is None else tuple(connected))
    linked = None if connected is None else frozenset((*connected, *by_one_end))
    return HostView(("a", "b", "c"), "", Readiness(ImexState.READY), OwnReport(index), found, linked)


LIST = MemberList(PARTITION, 5, 3, "imex-%03d", {0: "a", 1: "b"}, 0, "a")


@pytest.mark.parametrize(
    ("connected", "index", "generation"),
    [((1,), 0, 5), ((), 0, 5), ((1, 2), 0, 3), (None, 0, 3), ((1,), None, 3), ((0,), 1, 3)],
    ids=["members only", "none", "another node", "not known", "index not known", "other index"],
)
def test_when_a_member_list_counts_as_confirmed(
    connected: tuple[int, ...] | None, index: int | None, generation: int
) -> None:
    last = DaemonState(partition=PARTITION, generation=3)
    assert daemon_state(view(connected, index), PARTITION, LIST, last).generation == generation


def test_a_connection_that_only_one_end_reports_is_one_to_a_node_outside_the_list() -> None:
    """The daemon of a node that has left may not answer, and its processes may still use their imports."""
    last = DaemonState(partition=PARTITION, generation=3)
    state = daemon_state(view((1,), by_one_end=(2,)), PARTITION, LIST, last)
    assert (state.generation, state.connected) == (3, (1,))
    assert "2: c" in state.problem


class AnsweringCtl(ImexCtl):
    """Of a READY daemon. After `view` is None it hangs, and is killed after its timeout."""

    def __init__(self, view: DomainView | None) -> None:
        super().__init__(["false"])
        self.view = view
        self.before_answer: Callable[[], object] = lambda: None

    async def state(self, config: Path) -> ImexState:
        return ImexState.READY

    async def own_index(self, config: Path) -> int | None:
        return 0

    async def domain(self, config: Path) -> DomainView | None:
        view = self.view
        self.before_answer()
        return view


def nodes(*connections: tuple[int, ...]) -> DomainView:
    """For each node the indexes that it reports as connected."""
    connected = Connection("CONNECTED")
    return DomainView(
        {index: DomainNode(connections=dict.fromkeys(each, connected)) for index, each in enumerate(connections)}
    )


@pytest.fixture
def config(tmp_path: Path) -> HostConfig:
    etc = tmp_path / "etc/nvidia-imex"
    etc.mkdir(parents=True)
    (etc / "config.cfg").touch()
    (etc / "nodes_config.cfg").write_text("a\nb\nc\n")
    return HostConfig(tmp_path)


@asynccontextmanager
async def observing(config: HostConfig, ctl: ImexCtl) -> AsyncIterator[tuple[HostDaemon, list[DaemonState]]]:
    states: list[DaemonState] = []
    intervals = PollIntervals(starting=0.02, waiting=0.02, connecting=0.02, steady=0.02)
    daemon = HostDaemon(config, ctl, states.append, poll_intervals=intervals)
    task = asyncio.create_task(daemon.run())
    try:
        yield daemon, states
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_an_answer_from_before_a_member_list_does_not_confirm_it(config: HostConfig) -> None:
    ctl = AnsweringCtl(nodes((1,), (0,), ()))
    async with observing(config, ctl) as (daemon, states):
        daemon.expect(PARTITION, LIST)
        await until_async(lambda: states and states[-1].generation == 5)
        ctl.view = None
        daemon.expect(PARTITION, structs.replace(LIST, generation=6))
        seen = len(states)
        await until_async(lambda: len(states) >= seen + 3)
        assert states[-1].generation == 5
        assert states[-1].connected == (1,), "the last connections are still the best that is known"
        ctl.view = nodes((1,), (0,), ())
        await until_async(lambda: states[-1].generation == 6)


async def test_an_answer_to_a_query_that_began_before_a_member_list_does_not_confirm_it(
    config: HostConfig,
) -> None:
    ctl = AnsweringCtl(nodes((1,), (0,), ()))
    async with observing(config, ctl) as (daemon, states):
        daemon.expect(PARTITION, LIST)
        await until_async(lambda: states and states[-1].generation == 5)

        def expect_the_next_and_hang() -> None:
            daemon.expect(PARTITION, structs.replace(LIST, generation=6))
            ctl.view = None

        ctl.before_answer = expect_the_next_and_hang
        seen = len(states)
        await until_async(lambda: len(states) >= seen + 3)
        assert states[-1].generation == 5


@pytest.mark.parametrize("view", [nodes((1, 2), (0,), ()), nodes((1,), (0,), (0,))], ids=["this end", "the other"])
async def test_a_connection_to_another_node_that_one_end_reports_keeps_a_list_unconfirmed(
    config: HostConfig, view: DomainView
) -> None:
    async with observing(config, AnsweringCtl(view)) as (daemon, states):
        daemon.expect(PARTITION, LIST)
        await until_async(lambda: states and states[-1].problem)
        assert "2: c" in states[-1].problem
        assert (states[-1].generation, states[-1].connected) == (0, (1,))


def test_what_was_confirmed_in_another_partition_does_not_count() -> None:
    last = DaemonState(partition="7b968a6d.2", generation=3)
    assert daemon_state(view(None), PARTITION, LIST, last).generation == 0


def test_the_list_is_read_in_the_root_of_the_host(tmp_path: Path) -> None:
    etc = tmp_path / "etc/nvidia-imex"
    etc.mkdir(parents=True)
    (etc / "config.cfg").write_text("# comment\nLOG_LEVEL = 4\n")
    with pytest.raises(Misconfigured, match=r"^/etc/nvidia-imex/nodes_config\.cfg, which .* No such file"):
        read_node_list(HostConfig(tmp_path))
    (etc / "nodes_config.cfg").write_text("\n # none\n")
    with pytest.raises(Misconfigured, match="it lists no nodes"):
        read_node_list(HostConfig(tmp_path))
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/list").write_text("10.0.0.1\n\n 10.0.0.2 \n")
    # An absolute link leads to a file of the host, not of our container.
    (etc / "nodes").symlink_to("/srv/list")
    (etc / "config.cfg").write_text("IMEX_NODE_CONFIG_FILE = /etc/nvidia-imex/nodes\n")
    assert read_node_list(HostConfig(tmp_path)) == ("10.0.0.1", "10.0.0.2")


def copy_shell(root: Path) -> None:
    linked = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout
    for path in ["/bin/sh", *re.findall(r"/\S+", linked)]:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
async def test_the_ctl_runs_in_the_root_of_the_host(tmp_path: Path) -> None:
    copy_shell(tmp_path)
    for name in ("opt/nvidia/imex/bin", "etc/nvidia-imex"):
        (tmp_path / name).mkdir(parents=True)
    script = tmp_path / "opt/nvidia/imex/bin/nvidia-imex-ctl"
    script.write_text('#!/bin/sh\n[ -d /etc/nvidia-imex ] && [ "$*" = "-c /etc/x.cfg -q" ] && echo READY\n')
    script.chmod(0o755)
    ctl = ImexCtl(host_ctl_command(tmp_path), timeout=30)
    assert await ctl.state(Path("/etc/x.cfg")) is ImexState.READY
    assert await ctl.state(Path("/etc/y.cfg")) is ImexState.UNAVAILABLE
