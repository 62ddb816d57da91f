"""A child process that never outlives us, and that says what it logged when it fails.

The kernel kills it when its parent dies, even by `kill -9` (parent-death signal, set by `setpriv`, because
`preexec_fn` is unsafe beside gRPC's threads). That signal follows the thread that started the child, so
children are started from the main thread only. Each child leads a process group of its own, so that Ctrl-C
at a terminal reaches us alone and we stop the children in order.
"""

import os
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
    """May be started again after it ended; its log file goes on."""

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
            raise Misconfigured(f"{self.name} was never started: call start() first")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.poll() if self._child else None

    @property
    def verdict(self) -> str:
        """How it ended."""
        code = self.exit_code
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Misconfigured(f"{self.name} must be started from the main thread: it would die with another")
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
        self._until_bound_to_us(self._child.pid)

    def until(self, ready: Callable[[], bool], *, within: float) -> None:
        """Wait for a condition that this process brings about; raise with its last words if it does not."""
        deadline = time.monotonic() + within
        while not ready():
            if not self.running:
                raise Unavailable(f"{self.name} ended ({self.verdict}) before it was ready. {self._last_words()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} was not ready within {within:g} s. {self._last_words()}")
            time.sleep(POLL_SECONDS)

    def kill(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """Signal the whole process group; one that is gone already is no error."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, with_signal)

    def stop(self, within: float = 5) -> None:
        """Ask with SIGTERM, insist with SIGKILL after the deadline (0: at once), return when it is gone."""
        self.kill(signal.SIGTERM)
        if not self.ended(within):
            self.kill()
            self.ended(within=10)

    def ended(self, within: float) -> bool:
        """Wait that long at most for the end of the whole group; what was never started has ended."""
        deadline = time.monotonic() + within
        while self.running or self._group_lives():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS / 5)
        return True

    def _group_lives(self) -> bool:
        """Whether anybody but zombies is in it: orphans are reaped by pid 1, some day."""
        return self._child is not None and any(
            state != "Z" and group == self._child.pid for state, group in _states_and_groups()
        )

    def _until_bound_to_us(self, pid: int) -> None:
        """`setpriv` asks for the signal and becomes the program; killed before, we would leave an orphan."""
        with suppress(FileNotFoundError):
            while Path(f"/proc/{pid}/exe").readlink().name == "setpriv":
                time.sleep(0.001)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"The last lines of {self.log}:", *lines[-15:]])


def _states_and_groups() -> Iterator[tuple[str, int]]:
    for process in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, *_ = process.read_text().rpartition(")")[2].split()
            yield state, int(group)
