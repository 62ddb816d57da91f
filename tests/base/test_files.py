"""Atomic writes of files."""

from pathlib import Path

import pytest

from imex_dra.base.files import write_atomically


def test_an_error_names_the_file_and_is_the_same_at_each_attempt(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    messages = set()
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as failed:
            write_atomically(path, b"content")
        assert failed.value.filename == str(path)
        messages.add(str(failed.value))
    assert len(messages) == 1
