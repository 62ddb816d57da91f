"""Containers of an MPI job, as far as mpirun can tell: a host name, the job's key, own processes."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.sandbox.waiting import eventually

_BECOME = """
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
        self, *argv: str, environment: Mapping[str, str] = {}, heard: bool = False
    ) -> "subprocess.Popen[bytes]":
        """What it says is in its log, unless somebody hears it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_unshare(), "sh", "-c", _BECOME, "sh", *argv],
                env={**os.environ, "KEYS": str(self._keys), "NAME": self.name, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if heard else log,
                stderr=subprocess.PIPE if heard else log,
            )
        return self._process

    def serve(self, **environment: str) -> None:
        """As a worker, ready when it says so."""
        self.start(*PYTHON, "imex_dra.sandbox.mpi.server", environment=environment)
        assert eventually(lambda: "Server listening" in self.said, WITHIN), self.said

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """As a container dies: with everything in it."""
        if self._process:
            self._process.kill()
            self._process.communicate()


class Job:
    """`mpirun` in a launcher's container."""

    def __init__(self, pod: Pod, hostfile: Path) -> None:
        self._pod = pod
        self._hostfile = hostfile
        self.process: subprocess.Popen[bytes]

    def start(self, *words: str, **environment: str) -> None:
        argv = (*PYTHON, "imex_dra.sandbox.mpi.launcher", "--hostfile", str(self._hostfile), *words)
        self.process = self._pod.start(*argv, environment=environment, heard=True)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        out, err = self.process.communicate(timeout=WITHIN)
        return self.process.returncode, out.decode(), err.decode()

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        self.start(*words, **environment)
        return self.finish()

    def signal(self, number: signal.Signals) -> None:
        """To mpirun itself, which is the child of `unshare`."""
        os.kill(int(_children(self.process.pid)), number)


def make_keys(directory: Path) -> Path:
    directory.mkdir()
    for name in ("id_rsa", "id_rsa.pub", "authorized_keys"):
        (directory / name).write_text(secrets.token_hex())
    return directory


def marker() -> str:
    """A number of seconds to sleep that nobody else sleeps."""
    return f"86400.{secrets.randbelow(10**12):012}"


def gone(nap: str) -> bool:
    return eventually(lambda: alive(nap) == [], WITHIN)


def alive(nap: str) -> list[int]:
    """Processes on this machine, in whatever namespace, that sleep so long."""
    return [pid for pid, argv in _processes() if Path(argv[0]).name == "sleep" and nap in argv]


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield int(path.name), (path / "cmdline").read_text().split("\0")
        except OSError:
            continue


def _children(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + WITHIN
    while not (found := children.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _unshare() -> list[str]:
    kinds = ["--user", "--map-root-user", "--mount", "--uts", "--pid", "--fork", "--kill-child=KILL"]
    return ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *kinds, "--"]
