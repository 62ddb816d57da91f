"""Atomic writes, and what their errors say."""

import errno
import os
from pathlib import Path

import pytest

from imex_dra.base.files import write_atomically


def test_it_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second", mode=0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("operation", ["open", "fchmod", "rename"])
def test_an_error_names_the_file_and_not_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The NVLinkNode quotes it: with a random name it would be written again at each attempt."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]), None, str(args[-1]))

    monkeypatch.setattr(os, operation, fail)
    path = tmp_path / "checkpoint.json"
    with pytest.raises(OSError, match="Input/output error") as failed:
        write_atomically(path, b"content")
    assert (failed.value.filename, failed.value.filename2) == (str(path), None)
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_the_file_and_is_the_same_at_each_attempt(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    messages = set()
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as failed:
            write_atomically(path, b"content")
        assert failed.value.filename == str(path)
        messages.add(str(failed.value))
    assert len(messages) == 1
