"""Becomes a command inside a running container: in its namespaces, with its environment, beside its own processes.

Run as `python -I -S entering.py <plan> <container> <descriptor> <terminal> <argv…>`. The plan is the one that the
container was made from, the container a process descriptor of its first process. As `confinement` does, it writes
one zero byte to the descriptor just before the command runs, or what went wrong. The command's end is ours; it
dies with us, and with the container.
"""

# ruff: noqa: PTH120, PTH123

import ctypes
import fcntl
import json
import os
import signal
import sys
import termios

# Isolated (-I), a program does not find what lies beside it.
sys.path.append(os.path.dirname(__file__))

import confinement  # type: ignore[import-not-found]

_LIBC = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000  # mount, UTS, IPC, user, pid
_SET_DEATH_SIGNAL = 1


def enter(container: int) -> None:
    """Of the pid namespace only children become members."""
    if _LIBC.setns(container, _NAMESPACES):
        raise OSError(ctypes.get_errno(), f"the container can't be entered: {os.strerror(ctypes.get_errno())}")


def die_with_parent() -> None:
    """After `enter`: a change of rights forgets it."""
    _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def become(plan: dict, argv: list[str], descriptor: int, *, terminal: bool) -> None:  # type: ignore[type-arg]
    die_with_parent()
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(plan["directory"])
    environment = plan["environment"]
    program = confinement.find(argv[0], environment.get("PATH", os.defpath))
    os.write(descriptor, confinement.STARTED)
    os.execve(program, argv, environment)


def main() -> None:
    file, container, descriptor, terminal, *argv = sys.argv[1:]
    told = int(descriptor)
    os.set_inheritable(told, False)
    os.set_inheritable(int(container), False)
    try:
        with open(file) as opened:
            plan = json.load(opened)
        enter(int(container))
        die_with_parent()
        if child := os.fork():
            os.close(told)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(code if code >= 0 else 128 - code)
        become(plan, argv, told, terminal=terminal == "terminal")
    except Exception as error:
        os.write(told, str(error).encode())
        os._exit(128)


if __name__ == "__main__":
    main()
