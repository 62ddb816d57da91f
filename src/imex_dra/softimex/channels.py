"""Which channel a process has, by a descriptor that it passed. Never by a number that it says.

The descriptor must be of a channel file of this node, and open for reading and writing: one that was opened as
a mere path, or only for reading, shows that its owner can see the file, not that it was given it.
"""

import fcntl
import os
import re

from imex_dra.softimex.errors import CudaError

_NAME = re.compile(r"channel(0|[1-9][0-9]{0,6})")


def prove(descriptor: int | None, directory: str) -> int:
    """The number of the channel, or CUDA's refusal."""
    if descriptor is None:
        raise _refusal("this process passed no channel: does its container list the claim?")
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE != os.O_RDWR:
        raise _refusal("the channel must be opened for reading and writing")
    number = find(os.fstat(descriptor), directory)
    if number is None:
        raise _refusal("the file that this process passed is no channel of this node")
    return number


def find(passed: os.stat_result, directory: str) -> int | None:
    try:
        with os.scandir(directory) as entries:
            candidates = [entry for entry in entries if entry.inode() == passed.st_ino]
            return next((int(entry.name[7:]) for entry in candidates if _is_channel(entry, passed)), None)
    except OSError:
        return None


def _is_channel(entry: os.DirEntry[str], passed: os.stat_result) -> bool:
    own = entry.stat(follow_symlinks=False)
    same = (own.st_dev, own.st_ino) == (passed.st_dev, passed.st_ino)
    return same and _NAME.fullmatch(entry.name) is not None


def _refusal(why: str) -> CudaError:
    return CudaError(CudaError.NOT_PERMITTED, why)
