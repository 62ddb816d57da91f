"""Manages nvidia-imex: one loop does what `plan` decides, another asks nvidia-imex-ctl.

It runs inside `imex node` and keeps nothing that it could not find again: nvidia-imex does not notice when this
program is killed, upgraded or started again.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from imex_dra.api import nodereasons
from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError
from imex_dra.base.waiting import wait_any
from imex_dra.daemon.plan import Step, lacks_certificate, must_skip_recovery, next_step
from imex_dra.daemon.state import (
    Boots,
    Connections,
    DaemonState,
    OwnReport,
    PollIntervals,
    Readiness,
    Recovery,
    RecoveryTimeouts,
)
from imex_dra.daemon.supervisor import Found, Process, Supervisor
from imex_dra.imex.config import generation_in, hosts_file, identity_of
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import Leave, MemberList

log = structlog.get_logger()

_POLL_INTERVALS = PollIntervals()
_CLOCK = Clock()

_PERIOD = 0.5
"""Seconds between two looks at the directory of the supervisor, which cannot send events."""
_PERIOD_AFTER_STEP = 0.1

_RECOVERY_TIMEOUTS = RecoveryTimeouts()


class DaemonManager:
    def __init__(
        self,
        supervisor: Supervisor,
        ctl: ImexCtl,
        publish: Callable[[DaemonState], None],
        *,
        poll_intervals: PollIntervals = _POLL_INTERVALS,
        recovery_timeouts: RecoveryTimeouts = _RECOVERY_TIMEOUTS,
        tls: bool = False,
        clock: Clock = _CLOCK,
    ) -> None:
        self._supervisor = supervisor
        self._ctl = ctl
        self._publish_state = publish
        self._poll_intervals = poll_intervals
        self._recovery_timeouts = recovery_timeouts
        self._tls = tls
        self._clock = clock
        self._desired: MemberList | Leave | None = None
        self._may_write = False
        self._driver_root = ""
        self._found: Found | None = None
        """None while the supervisor does not run."""
        self._recovery = Recovery()
        self._reconnected: frozenset[int] = frozenset()
        """Members that a process in recovery is connected to."""
        self._boots = Boots()
        self._readiness = Readiness()
        self._connections: Connections | None = None
        """None while nvidia-imex is not READY."""
        self._own = OwnReport()
        self._is_adopting = True
        """Whether a process that ran when this program started has not been queried yet."""
        self._step = Step.NOTHING
        self._problem = ""
        """Why the last step failed."""
        self._wake = asyncio.Event()
        """The supervisor's directory must be looked at before the period is over."""
        self._poll_now = asyncio.Event()

    def desire(self, desired: MemberList | Leave | None, *, may_write: bool, driver_root: str = "") -> None:
        """None: no change. During an update only one of two node programs may write. `driver_root` is for the next
        start; it is empty while it is not known.
        """
        self._desired, self._may_write, self._driver_root = desired, may_write, driver_root
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._manage())
            group.create_task(self._poll())

    async def _manage(self) -> NoReturn:
        while True:
            self._wake.clear()
            self._look()
            taken, self._step = self._step, Step.NOTHING
            if self._found is not None and self._may_write:
                self._take_step(self._found, taken)
            # A process that runs already is not UNAVAILABLE because this program has just started.
            self._is_adopting = self._is_adopting and self._found is not None and self._found.is_to_run
            if not self._is_adopting:
                self._publish()
            await wait_any(self._wake, timeout=_PERIOD if self._step is taken else _PERIOD_AFTER_STEP)

    def _look(self) -> None:
        try:
            found = self._supervisor.find()
        except (OSError, ValueError) as error:
            log.error("the directory of the IMEX supervisor cannot be read, retrying", error=str(error))
            found = None
        if _process(found) != _process(self._found):
            self._reconnected = frozenset()
            self._set_readiness(Readiness())
            self._poll_now.set()
        self._found = found

    def _take_step(self, found: Found, taken: Step) -> None:
        answers = self._readiness.state is not ImexState.UNAVAILABLE
        self._step = next_step(self._desired, found, self._recovery, answers=answers, tls=self._tls)
        if self._step not in (taken, Step.NOTHING):  # a step is taken again until it has its effect
            generation = self._desired.generation if isinstance(self._desired, MemberList) else None
            log.info("managing nvidia-imex", step=self._step.name, generation=generation, pid=found.pid)
        is_member = isinstance(self._desired, MemberList)
        waits = is_member and lacks_certificate(found, tls=self._tls)
        self._problem = nodereasons.imex_certificate_missing() if waits else ""
        try:
            # Before a start. A process that runs does not need it, but its ctl and its next start do.
            if self._driver_root not in ("", found.driver_root):
                self._supervisor.write_driver_root(self._driver_root)
            self._act(self._step, found)
        except (ImexError, OSError) as error:
            # Retried at the next look. It is no reason to stop a process that serves other members.
            log.error("nvidia-imex cannot be managed, retrying", step=self._step.name, error=str(error))
            self._problem = nodereasons.imex_files_not_written(cause=str(error))

    def _act(self, step: Step, found: Found) -> None:
        match step, self._desired:
            case Step.STOP, _:
                if must_skip_recovery(found, self._recovery):
                    log.warning("restarting nvidia-imex without recovery", missing=self._missing_importers())
                # First UNAVAILABLE, then the stop: no claim may be served while nvidia-imex goes down.
                self._set_readiness(Readiness())
                self._publish()
                self._supervisor.set_current(None)
                self._supervisor.apply()
            case Step.START, MemberList() as desired:
                identity = identity_of(desired, self._recovery.quorum, tls=self._tls)
                if found.current != identity.name:
                    self._supervisor.set_current(None)
                self._supervisor.write_config(identity)
                self._supervisor.write_hosts(hosts_file(desired))
                self._supervisor.set_current(identity)
                self._supervisor.apply()
                self._supervisor.remove_other_configs(identity)
            case Step.UPDATE_HOSTS, MemberList() as desired:
                self._supervisor.write_hosts(hosts_file(desired))
            case Step.SET_QUORUM, MemberList() as desired:
                identity = identity_of(desired, self._recovery.quorum, tls=self._tls)
                self._supervisor.write_config(identity)
                self._supervisor.set_current(identity)
            case Step.RELOAD, _:
                self._supervisor.reload(found.pid)
            case Step.APPLY, _:
                self._supervisor.apply()

    async def _poll(self) -> NoReturn:
        process, since = _process(None), 0.0
        while True:
            self._poll_now.clear()
            found, interval = self._found, None
            if _process(found) != process:
                process, since = _process(found), self._clock.monotonic()
            if found is not None and found.is_to_run:
                await self._query(found)
                connected = self._connections.indexes if self._connections else None
                age = self._clock.monotonic() - since
                interval = self._poll_intervals.interval(self._desired, self._readiness, connected, age)
            await wait_any(self._poll_now, timeout=interval)

    async def _query(self, found: Found) -> None:
        if found.running is None:
            return
        config = self._supervisor.config(found.running)
        answer = await self._ctl.state(config)
        if self._is_replaced(found):
            return
        self._is_adopting = False
        self._set_readiness(self._readiness.observe(answer))
        self._wake.set()
        if answer is ImexState.WAITING_FOR_RECOVERY:
            domain = await self._ctl.domain(config)
            if domain is not None and not self._is_replaced(found):
                self._reconnected = frozenset(domain.connected_both_ways(found.running.own_index) or ())
        # After the state, because this query may be slow, and a READY daemon can be used without it.
        if answer is ImexState.READY:
            domain = await self._ctl.domain(config)
            if self._connections is not None and not self._is_replaced(found):
                indexes = domain.connected_both_ways(found.running.own_index) if domain else None
                self._connections = self._connections.observe(indexes, self._clock.now())
                own = domain.nodes.get(found.running.own_index) if domain else None
                self._own = self._own._replace(version=own.version if own else self._own.version)
                self._wake.set()
            if domain is not None and not self._own.is_asked:
                await self._ask_own_index(found, config)

    async def _ask_own_index(self, found: Found, config: Path) -> None:
        index = await self._ctl.own_index(config)
        if self._connections is not None and not self._is_replaced(found):
            self._own = self._own._replace(own_index=index, is_asked=True)
            self._wake.set()

    def _is_replaced(self, found: Found) -> bool:
        """Whether an answer is of a process that was replaced, or is being stopped, since the query began."""
        return _process(found) != _process(self._found)

    def _set_readiness(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._boots = self._boots.observe(readiness.state, self._boot_ids())
        now, complete = self._clock.monotonic(), self._is_complete
        self._recovery = self._recovery.observe(readiness.state, now, self._recovery_timeouts, complete=complete)
        if readiness.state is not ImexState.READY:
            self._connections, self._own = None, OwnReport()
        elif self._connections is None:
            self._connections = Connections(reported_at=self._clock.now())

    @property
    def _is_complete(self) -> bool:
        """Whether no possible importer is missing. Without a member list it is not known who they are."""
        return isinstance(self._desired, MemberList) and not self._missing_importers()

    def _missing_importers(self) -> list[str]:
        """Addresses of members that may have imported memory, have not rebooted since, and are not connected to a
        process in recovery.
        """
        if not isinstance(self._desired, MemberList):
            return []
        missing = {*self._desired.possible_importers} - self._reconnected - self._boots.rebooted(self._boot_ids())
        return [self._desired.addresses[index] for index in sorted(missing)]

    def _boot_ids(self) -> Mapping[int, str]:
        return self._desired.boot_ids if isinstance(self._desired, MemberList) else {}

    def _publish(self) -> None:
        found, connections = self._found, self._connections
        if found is None:
            problem = nodereasons.supervisor_not_running()
            self._publish_state(DaemonState(problem=problem, is_supervised=False))
            return
        identity = found.running if found.process is Process.RUNNING else found.configured
        if identity is None:
            self._publish_state(DaemonState(problem=self._problem, address=found.address))
            return
        self._publish_state(
            DaemonState(
                self._readiness.state,
                identity.partition,
                identity.own_index if self._own.own_index is None else self._own.own_index,
                generation_in(found.applied_title, identity.partition),
                connected=connections.indexes if connections else None,
                unreported_since=connections.unreported_since(self._clock.now()) if connections else "",
                version=self._own.version,
                problem=self._problem or self._process_problem(found),
                address=found.address,
                started_at=found.started_at,
            )
        )

    def _process_problem(self, found: Found) -> str:
        if self._readiness.state is ImexState.UNAVAILABLE:
            if found.exit_code is None:
                return ""
            return nodereasons.imex_ended(code=found.exit_code, output=self._supervisor.last_output())
        if self._readiness.state is ImexState.WAITING_FOR_RECOVERY:
            timeouts = self._recovery_timeouts
            missing = self._missing_importers()
            limit = timeouts.without_importers if self._is_complete else timeouts.longest
            return nodereasons.imex_recovering(timeout=limit, missing=missing)
        if found.running is not None and self._own.own_index not in (None, found.running.own_index):
            return nodereasons.imex_index_unexpected(expected=found.running.own_index)
        if found.running is not None and found.running.quorum == "NONE":
            return nodereasons.imex_without_recovery()
        return ""


def _process(found: Found | None) -> object:
    """Whatever changes it, the answers of the ctl so far are about something else."""
    return (found.pid, found.started_at, found.is_to_run) if found is not None else None
