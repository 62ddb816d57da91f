"""Child processes that never outlive this process, and whose errors include the end of their log.

The kernel kills a child when its parent dies, even if the parent got SIGKILL. The parent-death signal is set by
`setpriv`, because `preexec_fn` is unsafe in a process with gRPC threads. The signal is tied to the thread that
started the child, so children may be started only from the main thread. Each child leads its own process group:
Ctrl-C at a terminal reaches this process only, which then stops its children in order.
"""

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Misconfigured, Unavailable

POLL_SECONDS = 0.05


class Process:
    """May be started again after it has ended. All runs append to the same log file."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = log
        self._cwd = cwd
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise Misconfigured(f"{self.name} has not been started: call start() first")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.poll() if self._child else None

    @property
    def exit_status(self) -> str:
        """The signal or the exit code that ended the process, for messages."""
        code = self.exit_code
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Misconfigured(
                f"{self.name} must be started from the main thread: the kernel kills it when the thread that"
                " started it ends"
            )
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=self._env,
                process_group=0,
            )
        self._wait_for_parent_death_signal(self._child.pid)

    def until(self, ready: Callable[[], bool], *, within: float) -> None:
        """Wait for a condition that this process fulfills.

        If the process ends first or the time runs out, the error includes the end of the log.
        """
        deadline = time.monotonic() + within
        while not ready():
            if not self.running:
                raise Unavailable(
                    f"{self.name} ended ({self.exit_status}) before it was ready. {self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} was not ready within {within:g} s. {self._log_tail()}")
            time.sleep(POLL_SECONDS)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process group. Does nothing if the group is gone."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def stop(self, within: float = 5) -> None:
        """Send SIGTERM, send SIGKILL after `within` seconds (0: immediately), and wait for the process group."""
        self.kill(signal.SIGTERM)
        if not self.wait(within):
            self.kill()
            self.wait(within=10)

    def wait(self, within: float) -> bool:
        """Whether the whole process group ends in time. True if the process was never started."""
        deadline = time.monotonic() + within
        while self.running or self._group_is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS / 5)
        return True

    def _group_is_running(self) -> bool:
        # Zombies do not count: orphans of the group are reaped by pid 1, possibly much later.
        return self._child is not None and any(
            state != "Z" and group == self._child.pid for state, group in _states_and_groups()
        )

    def _wait_for_parent_death_signal(self, pid: int) -> None:
        # `setpriv` sets the signal and then executes the program. If this process were killed before that, the
        # child would become an orphan, so start() does not return earlier.
        with suppress(FileNotFoundError):
            while Path(f"/proc/{pid}/exe").readlink().name == "setpriv":
                time.sleep(0.001)

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"The last lines of {self.log}:", *lines[-15:]])


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit.

    The default of a shell is too low for a process that runs a whole rack: each node needs a watch and connections
    to its plugin and its daemon.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _states_and_groups() -> Iterator[tuple[str, int]]:
    for process in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, *_ = process.read_text().rpartition(")")[2].split()
            yield state, int(group)
