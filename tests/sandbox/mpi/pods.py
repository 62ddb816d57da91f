"""Containers of an MPI job as mpirun sees them: a host name, the key of the job, and their own processes."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.waiting import until

_SET_UP = """
mount --bind "$KEYS" "$KEYS" && echo "$NAME" > /proc/sys/kernel/hostname && exec "$@"
"""
PYTHON = (sys.executable, "-P", "-m")
WITHIN = 60.0


class Pod:
    def __init__(self, name: str, keys: Path, log: Path) -> None:
        self.name = name
        self._keys = keys
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, *argv: str, environment: Mapping[str, str] = {}, capture: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Output is written to the log unless it is captured."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_unshare(), "sh", "-c", _SET_UP, "sh", *argv],
                env={**os.environ, "KEYS": str(self._keys), "NAME": self.name, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else log,
                stderr=subprocess.PIPE if capture else log,
            )
        return self._process

    def serve(self, **environment: str) -> None:
        """Run the rank server, and wait until it is ready."""
        self.start(*PYTHON, "imex_sandbox.mpi.server", environment=environment)
        until(lambda: "Server listening" in self.log, within=WITHIN, what=f"rank server of {self.name}")

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """Kill all processes of the container."""
        if self._process:
            self._process.kill()
            self._process.communicate()


class Job:
    """`mpirun` in the container of a launcher."""

    def __init__(self, pod: Pod, hostfile: Path) -> None:
        self._pod = pod
        self._hostfile = hostfile
        self.process: subprocess.Popen[bytes]

    def start(self, *words: str, **environment: str) -> None:
        argv = (*PYTHON, "imex_sandbox.mpi.launcher", "--hostfile", str(self._hostfile), *words)
        self.process = self._pod.start(*argv, environment=environment, capture=True)

    def finish(self) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=WITHIN)
        return self.process.returncode, out.decode(), err.decode()

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        self.start(*words, **environment)
        return self.finish()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to mpirun, which is the child of `unshare`."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        os.kill(int(until(lambda: children.read_text().strip())), number)


def make_keys(directory: Path) -> Path:
    directory.mkdir()
    for name in ("id_rsa", "id_rsa.pub", "authorized_keys"):
        (directory / name).write_text(secrets.token_hex())
    return directory


def unique_duration() -> str:
    """An argument of `sleep` by which its processes can be found."""
    return f"86400.{secrets.randbelow(10**12):012}"


def sleeping(duration: str) -> list[int]:
    """Pids of the processes in all namespaces of this machine that sleep for this duration."""
    return [pid for pid, argv in _processes() if Path(argv[0]).name == "sleep" and duration in argv]


def until_sleeping(duration: str, count: int) -> None:
    until(lambda: len(sleeping(duration)) == count, within=WITHIN, what=f"{count} processes of sleep {duration}")


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield int(path.name), (path / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue


def _unshare() -> list[str]:
    namespaces = ["--user", "--map-root-user", "--mount", "--uts", "--pid", "--fork", "--kill-child=KILL"]
    return ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *namespaces, "--"]
