"""kubectl at a person's fingertips: what it prints on which stream, and how it ends."""

import os
import pty
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imex_dra.sandbox.kubernetes.binaries import find
from tests.kubelet.stage import Pod

WITHIN = 60


@dataclass(frozen=True)
class Said:
    out: str
    err: str
    code: int


class Console:
    def __init__(self, kubeconfig: Path) -> None:
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def logs(self, pod: Pod, *flags: str) -> Said:
        return self("logs", pod.name, *flags)

    def execute(self, pod: Pod, *command: str, flags: tuple[str, ...] = (), stdin: str | None = None) -> Said:
        return self("exec", pod.name, *flags, "--", *command, stdin=stdin)

    def __call__(self, *words: str, stdin: str | None = None) -> Said:
        done = subprocess.run(
            [find("kubectl"), *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
        return Said(done.stdout, done.stderr, done.returncode)

    def at_a_terminal(self, *words: str) -> Said:
        """As a person sees it: one screen, where lines end as terminals want it."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [find("kubectl"), *words], env=self._environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        seen = b""
        with suppress(OSError):
            while read := os.read(ours, 4096):
                seen += read
        os.close(ours)
        return Said(seen.decode(), "", process.wait(WITHIN))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Goes on; whoever starts it ends it."""
        return subprocess.Popen(
            [find("kubectl"), *words],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
