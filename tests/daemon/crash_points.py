"""Kills `imex node` before each of the calls by which it changes the directory of the supervisor.

    python -m tests.daemon.crash_points <scenario> <directory>

A real supervisor runs a process in the directory. For N = 0, 1, ... a child process manages it towards the next
goal of the scenario and is killed right before its N-th such call. Another child then starts from what it finds.
The first child that is not killed is the last one. Prints how many were killed. It is a program of its own because
it forks, and a pytest worker has threads.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.state import DaemonState, PollIntervals
from imex_dra.daemon.supervisor import Found, Process, Supervisor
from imex_dra.imex.config import hosts_file, identity_of
from imex_dra.imex.ctl import ImexCtl, Reply
from imex_dra.imex.memberlist import Leave, MemberList
from tests.daemon.simulatednode import RunningSupervisor
from tests.killing import kill_before_call
from tests.waiting import until

CALLS = [(os, name) for name in ("mkdir", "rename", "unlink", "symlink", "ftruncate", "pwrite", "write")]
IMEX = "trap 'echo >> {notes}/signals' USR1; echo $$ >> {notes}/starts; while :; do sleep 0.02; done"
PARTITION, NAMES, OWN = "7b.1", "imex-0a1b2c3d-%03d", "127.0.0.1"

Goal = MemberList | Leave


def members(number: int, own: int = 0) -> MemberList:
    return MemberList(PARTITION, number + 1, 4, NAMES, {own: OWN, 2: f"10.0.{number}.1"}, own, OWN)


def others_change(number: int) -> tuple[Goal, Goal]:
    """Where the process is, and where it is to be: addresses of other members."""
    return members(2 * number), members(2 * number + 1)


def own_index_changes(number: int) -> tuple[Goal, Goal]:
    return members(2 * number), members(2 * number + 1, own=1)


def node_joins(number: int) -> tuple[Goal, Goal]:
    return Leave(""), members(number)


def node_leaves(number: int) -> tuple[Goal, Goal]:
    return members(number), Leave("")


SCENARIOS = {each.__name__: each for each in (others_change, own_index_changes, node_joins, node_leaves)}


class ReadyCtl(ImexCtl):
    async def _query(self, config: Path, *flags: str) -> Reply:
        return Reply(b"READY")


class Node:
    def __init__(self, directory: Path) -> None:
        self.notes = directory
        imex = ["sh", "-c", IMEX.format(notes=directory), "nvidia-imex"]
        self.supervisor = RunningSupervisor(directory / "imex", imex, environment={"RELOAD_INTERVAL": "0"})

    @property
    def starts(self) -> int:
        path = self.notes / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def manage(self, goal: Goal, fatal: int | None = None) -> bool:
        """In a process of its own, until the goal is reached; False if it was killed."""
        child = os.fork()
        if child == 0:
            if fatal is not None:
                kill_before_call(fatal, CALLS)
            asyncio.run(reach(self.supervisor.directory, goal))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code not in (0, -signal.SIGKILL):
            sys.exit(f"the child ended with {code}")
        return code == 0

    def check(self, goal: Goal, starts: int) -> Found:
        until(lambda: self.starts == starts)
        found = self.supervisor.find()
        if isinstance(goal, Leave):
            assert (found.process, found.current) == (Process.STOPPED, ""), found
            return found
        identity, hosts = identity_of(goal, "RECOVERY"), hosts_file(goal)
        assert (found.process, found.running, found.configured) == (Process.RUNNING, identity, identity), found
        assert (found.hosts, found.applied_title) == (hosts.content, hosts.title), found
        assert found.restarts == 0, found
        return found


async def reach(directory: Path, goal: Goal) -> None:
    reached = asyncio.Event()

    def publish(state: DaemonState) -> None:
        if state == DaemonState() if isinstance(goal, Leave) else _runs(goal, state):
            reached.set()

    manager = DaemonManager(
        Supervisor(directory), ReadyCtl(()), publish, poll_intervals=PollIntervals(0.05, 0.05, 0.05)
    )
    manager.desire(goal, may_write=True)
    managing = asyncio.create_task(manager.run())
    async with asyncio.timeout(60):
        await reached.wait()
    managing.cancel()
    await asyncio.wait({managing})


def _runs(goal: MemberList, state: DaemonState) -> bool:
    running = (state.state, state.partition, state.index, state.generation)
    return running == (ImexState.READY, goal.partition, goal.own_index, goal.generation)


def needed_starts(before: Goal, after: Goal) -> int:
    if isinstance(after, Leave):
        return 0
    return int(isinstance(before, Leave) or identity_of(before, "") != identity_of(after, ""))


def run(node: Node, scenario: Callable[[int], tuple[Goal, Goal]]) -> int:
    """How many children were killed."""
    last: Goal = Leave("")
    starts = 0
    for fatal in count():
        before, after = scenario(fatal)
        starts += needed_starts(last, before)
        assert node.manage(before)
        pid = node.check(before, starts).pid
        completed = node.manage(after, fatal)
        starts += needed_starts(before, after)
        assert node.manage(after)
        found = node.check(after, starts)
        if not needed_starts(before, after) and isinstance(after, MemberList):
            assert found.pid == pid
        last = after
        if completed:
            return fatal
    raise AssertionError("unreachable")


def main(scenario: str, directory: str) -> None:
    node = Node(Path(directory))
    try:
        print(run(node, SCENARIOS[scenario]))  # noqa: T201
    finally:
        node.supervisor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
