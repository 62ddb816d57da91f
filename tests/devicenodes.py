"""Real device nodes in a directory of a test."""

import os
import stat
from pathlib import Path

import pytest


def require_mknod(directory: Path) -> None:
    """Skips a test where device nodes cannot be created."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(directory / "trial", stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes can only be created with CAP_MKNOD, as root")
    (directory / "trial").unlink()


def description(path: Path) -> tuple[int, int, int]:
    """Major, minor and mode of a character device."""
    found = path.lstat()
    assert stat.S_ISCHR(found.st_mode), f"{path} is not a character device"
    return os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode)
