"""A real file system that a test can fill or make read-only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class Tmpfs:
    """A file system of its own, with room for a few files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Takes all blocks that are left."""
        with (self.path / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        assert shutil.disk_usage(self.path).free == 0

    def free(self) -> None:
        (self.path / "ballast").unlink()

    def become_read_only(self) -> None:
        _mount("-o", "remount,ro", str(self.path))

    def become_writable(self) -> None:
        _mount("-o", "remount,rw", str(self.path))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


@contextmanager
def mounted_tmpfs(path: Path) -> Iterator[Tmpfs]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path))
    try:
        yield Tmpfs(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)
