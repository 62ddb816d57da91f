"""The agent: one loop that keeps the child as the member list wants it, one that asks it how it is.

It has no access to the API: the node program speaks and listens at its socket (`listeners`), and the last member
list lies in a file (`memory`).
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import ImexError
from imex_dra.daemon.child import Child
from imex_dra.daemon.listeners import Listeners
from imex_dra.daemon.memory import Memory
from imex_dra.daemon.pace import Pace
from imex_dra.daemon.plan import Step, next_step, supersedes
from imex_dra.daemon.recovery import Recovery, problem
from imex_dra.imex.ctl import Ctl
from imex_dra.imex.files import Files
from imex_dra.imex.membership import Membership
from imex_dra.kube.backoff import Backoff

log = structlog.get_logger()

_PACE = Pace()

_REMAP_INTERVAL = 5.0
"""IMEX ignores a SIGUSR1 that comes sooner after the last one."""

_RECOVERY_PATIENCE = 60.0
"""Whoever lives connects within seconds; who is gone may never come back."""

_LONG_LIFE = 60.0
"""A child that lived that long did not fail to start; its end is a first failure again."""


class Agent:
    def __init__(
        self,
        files: Files,
        memory: Path,
        *,
        command: Sequence[str],
        ctl: Ctl,
        pace: Pace = _PACE,
        remap_interval: float = _REMAP_INTERVAL,
        recovery_patience: float = _RECOVERY_PATIENCE,
    ) -> None:
        self._files = files
        self._memory = Memory(memory)
        self._child = Child([*command, "-c", str(files.config)])
        self._ctl = ctl
        self._pace = pace
        self._remap_interval = remap_interval
        self._recovery_patience = recovery_patience
        self._recovery = Recovery()
        self._alone = False
        """Whether the child was told to wait for nobody."""
        self._backoff = Backoff(0.2, 10.0)
        self._wanted = self._memory.read()
        self._applied: Membership | None = None
        self._remap_at = 0.0
        self._news = asyncio.Event()
        self._curious = asyncio.Event()
        self._listeners = Listeners(self._take)

    async def run(self, socket: Path) -> None:
        async with self._listeners.served(socket), asyncio.TaskGroup() as group:
            group.create_task(self._keep())
            group.create_task(self._observe())

    def _take(self, membership: Membership) -> None:
        if membership.own_slot < 0:
            self._leave(membership.partition)
            return
        if membership == self._wanted or not supersedes(membership, self._wanted):
            return
        self._memory.write(membership)
        self._wanted = membership
        self._news.set()

    def _leave(self, place: str) -> None:
        """The node has moved to this place: a daemon of another partition ends, and is not started again."""
        if self._wanted is not None and self._wanted.partition != place:
            log.warning("the node has left the partition", partition=self._wanted.partition, place=place)
            self._memory.forget()
            self._wanted = None
            self._news.set()

    async def _keep(self) -> None:
        """Runs the child, again and again; a new identity ends it and starts another."""
        failures = 0
        while True:
            while self._wanted is None:
                self._listeners.say(partition="", slot=-1, generation=0, problem="")
                await self._news.wait()
                self._news.clear()
            started = asyncio.get_running_loop().time()
            verdict = await self._run_once(self._wanted)
            if verdict is None:
                continue
            failures = 1 if asyncio.get_running_loop().time() - started > _LONG_LIFE else failures + 1
            log.error("nvidia-imex is down", verdict=verdict)
            self._listeners.say(state=ImexState.UNAVAILABLE, connected=(), problem=verdict)
            await asyncio.sleep(self._backoff.delay(failures))

    async def _run_once(self, membership: Membership) -> str | None:
        """How the child ended, or None if it was ended for a new identity."""
        self._alone = self._recovery.given_up
        self._files.write(membership, quorum=self._recovery.quorum)
        child = asyncio.create_task(self._child.run())
        self._apply(membership)
        try:
            while not child.done():
                if self._news.is_set() and not self._follow_news():
                    return None
                await self._child_or_news(child)
            return child.result()
        finally:
            self._applied = None
            self._listeners.say(state=ImexState.UNAVAILABLE, connected=())
            child.cancel()
            await asyncio.wait({child})

    async def _child_or_news(self, child: "asyncio.Task[str]") -> None:
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait({child, news}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    def _follow_news(self) -> bool:
        """False if the child has to be restarted."""
        self._news.clear()
        if self._wanted is None:
            return False
        if self._waited_enough():
            log.warning("nvidia-imex is restarted and waits for nobody", waited=self._recovery_patience)
            return False
        step = next_step(self._applied, self._wanted)
        if step in (Step.START, Step.RESTART):
            return False
        if step is Step.NOTHING or self._remap(self._wanted):
            self._apply(self._wanted)
        return True

    def _waited_enough(self) -> bool:
        return self._recovery.given_up and not self._alone

    def _remap(self, membership: Membership) -> bool:
        """False if that can't be now; then there are news when it can."""
        if self._listeners.state.state is ImexState.UNAVAILABLE:
            return False  # it may not handle signals yet, and would die of one: when it answers, we are back
        loop = asyncio.get_running_loop()
        if loop.time() >= self._remap_at:
            self._remap_at = loop.time() + self._remap_interval
            if self._remapped(membership):
                return True
        loop.call_at(self._remap_at, self._news.set)
        return False

    def _remapped(self, membership: Membership) -> bool:
        """What can't be written now is tried again: no reason to end a daemon that serves others."""
        try:
            self._files.write_hosts(membership)
        except (ImexError, OSError) as error:
            log.error("the hosts file can't be written", error=str(error))
            return False
        self._child.signal(signal.SIGUSR1)
        return True

    def _apply(self, membership: Membership) -> None:
        self._applied = membership
        self._listeners.say(
            partition=membership.partition, slot=membership.own_slot, generation=membership.generation
        )
        self._curious.set()

    async def _observe(self) -> None:
        while True:
            if self._applied is not None and (pid := self._child.pid):
                await self._ask(self._applied, pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.pause(self._applied, self._listeners.state)):
                    await self._curious.wait()
            self._curious.clear()

    async def _ask(self, applied: Membership, pid: int) -> None:
        state = await self._ctl.state()
        domain = await self._ctl.domain() if state is ImexState.READY else None
        if applied is not self._applied or pid != self._child.pid:
            return
        connected = domain.connected_both_ways(applied.own_slot) if domain else ()
        now = asyncio.get_running_loop().time()
        self._recovery = self._recovery.seen(state, now, self._recovery_patience)
        answers = state is not ImexState.UNAVAILABLE
        words = {"problem": problem(state, self._recovery_patience, alone=self._alone)} if answers else {}
        self._listeners.say(state=state, connected=connected, **words)
        if self._waited_enough() or (self._wanted is not applied and answers):
            self._news.set()
