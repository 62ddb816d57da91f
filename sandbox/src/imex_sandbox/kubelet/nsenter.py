"""Executes a command inside a running container: in its namespaces, with its environment.

    python -I -S nsenter.py <spec> <container pidfd> <report fd> terminal|pipes <argv...>

`spec` is the file that the container was started from. As in `containerinit`, one zero byte is written to the
report descriptor just before the command is executed, or an error message if it cannot be. This process exits with
the command's exit code. The command is killed when this process or the container ends.

Runs isolated and imports the standard library only: probes start this program once per period and container.
"""

# ruff: noqa: PTH120, PTH123

import ctypes
import fcntl
import json
import os
import signal
import sys
import termios

# With -I the directory of this file is not on the import path.
sys.path.append(os.path.dirname(__file__))

import containerinit  # type: ignore[import-not-found]

_LIBC = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000  # mount, UTS, IPC, user, pid
_PR_SET_PDEATHSIG = 1


def join_namespaces(container: int) -> None:
    """Only children of this process join the pid namespace, so the command needs a fork."""
    if _LIBC.setns(container, _NAMESPACES):
        raise OSError(ctypes.get_errno(), f"cannot enter the container: {os.strerror(ctypes.get_errno())}")


def die_with_parent() -> None:
    """Call after `join_namespaces`: a change of credentials clears the signal."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def execute(spec: dict, argv: list[str], report: int, *, terminal: bool) -> None:  # type: ignore[type-arg]
    die_with_parent()
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(spec["directory"])
    environment = spec["environment"]
    program = containerinit.find(argv[0], environment.get("PATH", os.defpath))
    os.write(report, containerinit.STARTED)
    os.execve(program, argv, environment)


def main() -> None:
    file, container, descriptor, streams, *argv = sys.argv[1:]
    report = int(descriptor)
    os.set_inheritable(report, False)
    os.set_inheritable(int(container), False)
    try:
        with open(file) as opened:
            spec = json.load(opened)
        join_namespaces(int(container))
        die_with_parent()
        if child := os.fork():
            # Only the child reports.
            os.close(report)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(code if code >= 0 else 128 - code)
        execute(spec, argv, report, terminal=streams == "terminal")
    except Exception as error:
        os.write(report, str(error).encode())
        os._exit(128)


if __name__ == "__main__":
    main()
