"""The agent: one loop runs nvidia-imex with the desired member list, another polls its state.

The agent does not use the Kubernetes API. `imex node` sends member lists and receives states through a socket
(`server`). The last member list is kept in a file, so that after a reboot nvidia-imex is up before `imex node` is.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import ImexError
from imex_dra.daemon.plan import (
    Connections,
    PollIntervals,
    Readiness,
    Recovery,
    Step,
    next_step,
    recovery_problem,
    supersedes,
)
from imex_dra.daemon.process import ImexProcess
from imex_dra.daemon.server import StateServer
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.files import ImexFiles
from imex_dra.imex.memberlist import MemberList, MemberListFile
from imex_dra.kube.backoff import Backoff

log = structlog.get_logger()

_POLL_INTERVALS = PollIntervals()
_CLOCK = Clock()

_RELOAD_INTERVAL = 5.0
"""nvidia-imex ignores a SIGUSR1 that arrives sooner after the previous one."""

_RECOVERY_TIMEOUT = 60.0
"""Nodes that are alive reconnect within seconds; a node that is gone may never return."""

_STABLE_AFTER = 60.0
"""A process that ran this long did not fail to start: the restart back-off begins again."""


class Agent:
    def __init__(
        self,
        files: ImexFiles,
        ctl: ImexCtl,
        command: Sequence[str],
        *,
        poll_intervals: PollIntervals = _POLL_INTERVALS,
        reload_interval: float = _RELOAD_INTERVAL,
        recovery_timeout: float = _RECOVERY_TIMEOUT,
        clock: Clock = _CLOCK,
    ) -> None:
        self._files = files
        self._ctl = ctl
        self._process = ImexProcess([*command, "-c", str(files.config)])
        self._poll_intervals = poll_intervals
        self._reload_interval = reload_interval
        self._next_reload = 0.0
        self._recovery_timeout = recovery_timeout
        self._recovery = Recovery()
        self._clock = clock
        self._without_quorum = False
        """Whether the running process was started with IMEX_WAIT_FOR_QUORUM=NONE."""
        self._readiness = Readiness()
        self._connections: Connections | None = None
        """None while nvidia-imex is not READY."""
        self._backoff = Backoff(0.2, 10.0)
        self._member_list_file = MemberListFile(files.member_list)
        self._desired = self._member_list_file.read()
        self._applied: MemberList | None = None
        """The member list of the running process; None while it does not run."""
        self._changed = asyncio.Event()
        """The supervisor must compare `_desired` with `_applied` again."""
        self._poll_now = asyncio.Event()
        self._server = StateServer(self._accept)

    async def run(self, socket: Path) -> None:
        async with self._server.listening(socket), asyncio.TaskGroup() as group:
            group.create_task(self._supervise())
            group.create_task(self._poll())

    def _accept(self, member_list: MemberList) -> None:
        if member_list.own_index < 0:
            self._leave(member_list.partition)
            return
        if member_list == self._desired or not supersedes(member_list, self._desired):
            return
        self._member_list_file.write(member_list)
        self._desired = member_list
        self._changed.set()

    def _leave(self, current: str) -> None:
        """The node is in partition `current` now: a process of another partition stops and is not restarted."""
        if self._desired is not None and self._desired.partition != current:
            log.warning("the node left its partition", partition=self._desired.partition, current=current)
            self._member_list_file.remove()
            self._desired = None
            self._changed.set()

    async def _supervise(self) -> None:
        """Runs nvidia-imex and restarts it, with back-off after failures and at once for a new identity."""
        failures = 0
        while True:
            while self._desired is None:
                self._server.publish(partition="", index=-1, generation=0, problem="", started_at="")
                await self._changed.wait()
                self._changed.clear()
            started = asyncio.get_running_loop().time()
            problem = await self._run_process(self._desired)
            if problem is None:
                continue
            failures = 1 if asyncio.get_running_loop().time() - started > _STABLE_AFTER else failures + 1
            log.error("nvidia-imex is down", problem=problem)
            self._server.publish(problem=problem)
            await asyncio.sleep(self._backoff.delay(failures))

    async def _run_process(self, member_list: MemberList) -> str | None:
        """How the process ended, or None if the agent stopped it to start another."""
        self._without_quorum = self._recovery.timed_out
        try:
            self._files.write(member_list, quorum=self._recovery.quorum)
        except (ImexError, OSError) as error:
            return f"the configuration of nvidia-imex cannot be written: {error}"
        process = asyncio.create_task(self._process.run())
        self._set_applied(member_list, started_at=rfc3339_micro(self._clock.now()))
        try:
            while not process.done():
                if self._changed.is_set() and not self._follow_change():
                    return None
                await self._end_or_change(process)
            return process.result()
        finally:
            # First UNAVAILABLE, then the stop: `imex node` must not serve claims while nvidia-imex goes down.
            self._applied = None
            self._set_state(Readiness())
            process.cancel()
            await asyncio.wait({process})

    async def _end_or_change(self, process: "asyncio.Task[str]") -> None:
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({process, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    def _follow_change(self) -> bool:
        """False if the process must be stopped, and started again if a member list is desired."""
        self._changed.clear()
        if self._desired is None:
            return False
        if self._must_skip_recovery():
            log.warning("restarting nvidia-imex without recovery", waited=self._recovery_timeout)
            return False
        step = next_step(self._applied, self._desired)
        if step in (Step.START, Step.RESTART):
            return False
        if step is Step.NOTHING or self._update_hosts(self._desired):
            self._set_applied(self._desired)
        return True

    def _must_skip_recovery(self) -> bool:
        return self._recovery.timed_out and not self._without_quorum

    def _update_hosts(self, member_list: MemberList) -> bool:
        """False if it must be tried again; `_changed` is then set at the right time."""
        # A process that does not answer yet may not have its signal handler: SIGUSR1 would kill it. The poller
        # sets `_changed` as soon as the process answers.
        if self._server.state.state is ImexState.UNAVAILABLE:
            return False
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_reload:
            self._next_reload = loop.time() + self._reload_interval
            if self._write_hosts_and_signal(member_list):
                return True
        loop.call_at(self._next_reload, self._changed.set)
        return False

    def _write_hosts_and_signal(self, member_list: MemberList) -> bool:
        # A failed write is retried. It is no reason to stop a process that serves other members.
        try:
            self._files.write_hosts(member_list)
        except (ImexError, OSError) as error:
            log.error("the hosts file cannot be written, retrying", error=str(error))
            return False
        self._process.signal(signal.SIGUSR1)
        return True

    def _set_applied(self, member_list: MemberList, **changes: object) -> None:
        self._applied = member_list
        self._server.publish(
            partition=member_list.partition,
            index=member_list.own_index,
            generation=member_list.generation,
            **changes,
        )
        self._poll_now.set()

    async def _poll(self) -> None:
        while True:
            if self._applied is not None and (pid := self._process.pid):
                await self._query(self._applied, pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval()):
                    await self._poll_now.wait()
            self._poll_now.clear()

    def _poll_interval(self) -> float:
        return self._poll_intervals.interval(self._applied, self._server.state, missed=self._readiness.missed)

    async def _query(self, applied: MemberList, pid: int) -> None:
        answer = await self._ctl.state()
        if self._is_replaced(applied, pid):
            return
        self._set_state(self._readiness.observe(answer))
        if self._must_skip_recovery() or (self._desired is not applied and answer is not ImexState.UNAVAILABLE):
            self._changed.set()
        # After the state, because this query may be slow, and a READY daemon can be used without it.
        if answer is ImexState.READY:
            await self._query_connections(applied, pid)

    async def _query_connections(self, applied: MemberList, pid: int) -> None:
        domain = await self._ctl.domain()
        if self._is_replaced(applied, pid) or self._connections is None:
            return
        now = self._clock.now()
        indexes = domain.connected_both_ways(applied.own_index) if domain else None
        self._connections = self._connections.observe(indexes, now)
        self._server.publish(
            connected=self._connections.indexes, unreported_since=self._connections.unreported_since(now)
        )

    def _is_replaced(self, applied: MemberList, pid: int) -> bool:
        """Whether an answer is of a process or a member list that was replaced during the query."""
        return applied is not self._applied or pid != self._process.pid

    def _set_state(self, readiness: Readiness) -> None:
        self._readiness, state = readiness, readiness.state
        now = self._clock.monotonic()
        self._recovery = self._recovery.observe(state, now, self._recovery_timeout)
        changes: dict[str, object] = {"state": state}
        if state is not ImexState.UNAVAILABLE:
            changes["problem"] = recovery_problem(
                state, self._recovery_timeout, without_quorum=self._without_quorum
            )
        if state is not ImexState.READY:
            self._connections = None
            changes |= {"connected": None, "unreported_since": ""}
        elif self._connections is None:
            self._connections = Connections(reported_at=self._clock.now())
        self._server.publish(**changes)
