"""Resident memory of several processes together: a page of a file that they share counts once."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from imex_sandbox.kubernetes.machine import NamespacedProcess
from imex_sandbox.process import Process

MEGABYTE = 1024.0
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+) (\d+)")


def own_pid(process: Process) -> int:
    """A program on a node's machine is a child of `nsenter`."""
    return process.children()[0] if isinstance(process, NamespacedProcess) else process.pid


def resident(process: Process) -> float:
    """In MB."""
    status = Path(f"/proc/{own_pid(process)}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / MEGABYTE


def tree(pid: int, *, without: str) -> list[int]:
    """The process and those below it, but none of this program."""
    if Path(f"/proc/{pid}/exe").readlink().name.startswith(without):
        return []
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in tree(int(child), without=without))]


def resident_together(pids: Iterable[int]) -> float:
    """In MB. Of a file, as many pages as the process with most of them has; written pages are a process's own."""
    own, shared = 0, defaultdict[tuple[str, str], int](int)
    for pid in pids:
        files = defaultdict[tuple[str, str], int](int)
        for file, size, written in _mappings(pid):
            own += size if file is None else written
            if file is not None:
                files[file] += size - written
        for file, size in files.items():
            shared[file] = max(shared[file], size)
    return (own + sum(shared.values())) / MEGABYTE


def _mappings(pid: int) -> Iterable[tuple[tuple[str, str] | None, int, int]]:
    """The file, or None for other memory; resident and written kilobytes."""
    file: tuple[str, str] | None = None
    size = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := _MAPPING.match(line):
            file = (found[1], found[2]) if found[2] != "0" else None
        elif line.startswith("Rss:"):
            size = int(line.split()[1])
        elif line.startswith("Private_Dirty:"):
            yield file, size, int(line.split()[1])
