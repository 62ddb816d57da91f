"""Programs that a job starts once for every rank, and that are Python modules of this package.

A rank server forks such a rank instead of starting a Python for it: the interpreter and its imports take 0.08 s of
CPU time, more than the rest of a rank of a small job, and 72 ranks share the cores of a laptop.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

DIRECTORY = "/run/imex/bin"
"""Where containers see the programs of the sandbox."""
MODULES = {
    "all_reduce_perf": "imex_sandbox.softimex.allreduce",
    "nvbandwidth": "imex_sandbox.softimex.bandwidth",
}
SUBCOMMANDS = {"allreduce": "all_reduce_perf", "bandwidth": "nvbandwidth"}
"""Of `imex`: without what other subcommands import."""

Main = Callable[[Sequence[str]], int]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Invocation(NamedTuple):
    main: Main
    arguments: Sequence[str]


def find(argv: Sequence[str]) -> Invocation | None:
    """The module that a resolved command line runs, if it is one of these. Imports it."""
    directory, _, name = argv[0].rpartition("/")
    arguments = argv[1:]
    if name == "imex" and arguments and arguments[0] in SUBCOMMANDS:
        name, arguments = SUBCOMMANDS[arguments[0]], arguments[1:]
    if directory != DIRECTORY or name not in MODULES:
        return None
    return Invocation(import_module(MODULES[name]).main, arguments)


class ForkedProcess:
    """A child that runs an invocation: with its own process group, pipes for its output, and no other descriptor.

    It is killed when its parent dies.
    """

    def __init__(self, invocation: Invocation, environment: Mapping[str, str]) -> None:
        self.stdout, output = os.pipe()
        self.stderr, errors = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(invocation, environment, parent, output, errors)
        os.close(output)
        os.close(errors)
        with suppress(ProcessLookupError):  # also here, so that a signal to the group never misses it
            os.setpgid(self.pid, self.pid)

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(invocation: Invocation, environment: Mapping[str, str], parent: int, output: int, errors: int) -> None:
    """Does not return: nothing of the parent's stack may run in the child."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return  # it died before the line above
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        for standard, descriptor in enumerate((null, output, errors)):
            os.dup2(descriptor, standard)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # New ones: what the parent has buffered must not be written twice.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.clear()
        os.environ.update(environment)
        code = invocation.main(invocation.arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
