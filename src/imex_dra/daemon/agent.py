"""The agent: one loop that keeps the child as the member list wants it, one that asks it how it is, and a
socket where the node program speaks and listens.

It has no access to the API. The last member list lies in a file, so that after a reboot the daemon is up
before anybody else is.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import ImexError
from imex_dra.base.files import write_atomically
from imex_dra.daemon.child import Child
from imex_dra.daemon.plan import Recovery, Step, next_step, supersedes
from imex_dra.imex.ctl import Ctl
from imex_dra.imex.files import Files
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.membership import Membership
from imex_dra.kube.backoff import Backoff

log = structlog.get_logger()

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
        eager: float = 0.2,
        watchful: float = 1.0,
        calm: float = 5.0,
        remap_interval: float = _REMAP_INTERVAL,
        recovery_patience: float = _RECOVERY_PATIENCE,
    ) -> None:
        """Seconds between two questions: until it is READY, until all members are connected, afterwards."""
        self._files = files
        self._memory = memory
        self._child = Child([*command, "-c", str(files.config)])
        self._ctl = ctl
        self._eager, self._watchful, self._calm = eager, watchful, calm
        self._remap_interval = remap_interval
        self._recovery_patience = recovery_patience
        self._recovery = Recovery()
        self._alone = False
        self._backoff = Backoff(0.2, 10.0)
        self._wanted = self._remembered()
        self._applied: Membership | None = None
        self._remap_at = 0.0
        self._news = asyncio.Event()
        self._curious = asyncio.Event()
        self._state = DaemonState()
        self._listeners: set[asyncio.StreamWriter] = set()

    async def run(self, socket: Path) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, socket)
        async with server:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._keep())
                    group.create_task(self._observe())
            finally:
                for writer in self._listeners:
                    writer.close()  # from Python 3.12 on a server waits for its connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._listeners.add(writer)
        try:
            writer.write(frame(self._state))
            async for membership in messages(reader, Membership):
                self._take(membership)
        except ImexError as error:
            log.warning("the node program sent something strange", error=str(error))
        except asyncio.CancelledError:
            log.debug("the agent stops while the node program listens")
        finally:
            self._listeners.discard(writer)
            writer.close()

    def _take(self, membership: Membership) -> None:
        if membership.own_slot < 0:
            self._leave(membership.partition)
            return
        if membership == self._wanted or not supersedes(membership, self._wanted):
            return
        write_atomically(self._memory, msgspec.json.encode(membership))
        self._wanted = membership
        self._news.set()

    def _leave(self, place: str) -> None:
        """The node has moved to this place: a daemon of another partition ends, and is not started again."""
        if self._wanted is not None and self._wanted.partition != place:
            log.warning("the node has left the partition", partition=self._wanted.partition, place=place)
            self._memory.unlink(missing_ok=True)
            self._wanted = None
            self._news.set()

    def _remembered(self) -> Membership | None:
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=Membership)
        except (FileNotFoundError, ValueError):
            return None

    async def _keep(self) -> None:
        """Runs the child, again and again; a new identity ends it and starts another."""
        failures = 0
        while True:
            while self._wanted is None:
                self._say(partition="", slot=-1, generation=0, problem="")
                await self._news.wait()
                self._news.clear()
            started = asyncio.get_running_loop().time()
            verdict = await self._run_once(self._wanted)
            if verdict is None:
                continue
            failures = 1 if asyncio.get_running_loop().time() - started > _LONG_LIFE else failures + 1
            log.error("nvidia-imex is down", verdict=verdict)
            self._say(state=ImexState.UNAVAILABLE, connected=(), problem=verdict)
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
            self._say(state=ImexState.UNAVAILABLE, connected=())
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
        if self._recovery.given_up and not self._alone:
            log.warning("nvidia-imex is restarted and waits for nobody", waited=self._recovery_patience)
            return False
        loop = asyncio.get_running_loop()
        match next_step(self._applied, self._wanted):
            case Step.START | Step.RESTART:
                return False
            case Step.REMAP if self._state.state is ImexState.UNAVAILABLE:
                return True  # it may not handle signals yet, and would die of one: when it answers, we are back
            case Step.REMAP if loop.time() < self._remap_at:
                loop.call_at(self._remap_at, self._news.set)
                return True
            case Step.REMAP:
                self._remap_at = loop.time() + self._remap_interval
                if not self._remapped(self._wanted):
                    loop.call_at(self._remap_at, self._news.set)
                    return True
        self._apply(self._wanted)
        return True

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
        self._say(partition=membership.partition, slot=membership.own_slot, generation=membership.generation)
        self._curious.set()

    async def _observe(self) -> None:
        while True:
            if self._applied is not None and (pid := self._child.pid):
                await self._ask(self._applied, pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
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
        self._say(state=state, connected=connected, problem=self._problem(state))
        waited_enough = self._recovery.given_up and not self._alone
        if waited_enough or (self._wanted is not applied and state is not ImexState.UNAVAILABLE):
            self._news.set()

    def _problem(self, state: ImexState) -> str:
        if state is ImexState.UNAVAILABLE:
            return self._state.problem
        patience = f"{self._recovery_patience:g} s"
        if state is ImexState.WAITING_FOR_RECOVERY:
            return f"it ended uncleanly and waits, {patience} at most, for nodes that had imported from it"
        if self._alone:
            return (
                "it was restarted without waiting: nodes that had imported from it did not come within"
                f" {patience}, and a job that still runs there may use memory that is gone"
            )
        return ""

    def _pause(self) -> float:
        if self._applied is None:
            return self._calm
        if self._state.state is not ImexState.READY:
            return self._eager
        others = {int(slot) for slot in self._applied.addresses} - {self._applied.own_slot}
        return self._calm if others <= set(self._state.connected) else self._watchful

    def _say(self, **changes: object) -> None:
        state = msgspec.structs.replace(self._state, **changes)
        if state == self._state:
            return
        self._state = state
        for writer in self._listeners:
            writer.write(frame(state))
