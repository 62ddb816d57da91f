"""kubectl as a user runs it: its output streams and its exit code."""

import os
import pty
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from imex_sandbox.kubernetes.binaries import find
from tests.sandbox.kubelet.fixture import Pod

TIMEOUT = 60


@dataclass(frozen=True)
class Output:
    stdout: str
    stderr: str
    code: int


class Kubectl:
    def __init__(self, kubeconfig: Path, *, without_exec: str = "") -> None:
        """`without_exec` is the reason why `kubectl exec` cannot work; tests that need it are skipped."""
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._without_exec = without_exec

    def require_exec(self) -> None:
        if self._without_exec:
            pytest.skip(self._without_exec)

    def logs(self, pod: Pod, *flags: str) -> Output:
        return self("logs", pod.name, *flags)

    def exec(self, pod: Pod, *command: str, flags: tuple[str, ...] = (), stdin: str | None = None) -> Output:
        return self("exec", pod.name, *flags, "--", *command, stdin=stdin)

    def __call__(self, *args: str, stdin: str | None = None) -> Output:
        done = subprocess.run(
            self._argv(*args),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return Output(done.stdout, done.stderr, done.returncode)

    def with_terminal(self, *args: str) -> Output:
        """All output is on `stdout`, with the line ends of a terminal."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self._argv(*args), env=self._environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        output = b""
        with suppress(OSError):
            while data := os.read(ours, 4096):
                output += data
        os.close(ours)
        return Output(output.decode(), "", process.wait(TIMEOUT))

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Returns while kubectl runs; the caller ends it."""
        return subprocess.Popen(
            self._argv(*args),
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _argv(self, *args: str) -> list[str]:
        if args[0] == "exec":
            self.require_exec()
        return [str(find("kubectl")), *args]
