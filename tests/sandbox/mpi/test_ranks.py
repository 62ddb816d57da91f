import os

from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.mpi.ranks import MAX_LINE, LineReader, split_lines


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"x", b"\n")), max_size=8))
def test_all_output_is_split_into_complete_lines(chunks: list[bytes]) -> None:
    lines, rest = [], b""
    for chunk in chunks:
        found, rest = split_lines(rest + chunk)
        lines += found
    assert b"".join(lines) + rest == b"".join(chunks)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert b"\n" not in rest


def test_a_long_line_is_forwarded_in_pieces() -> None:
    lines, rest = split_lines(b"a" * (2 * MAX_LINE + 5))
    assert [len(line) for line in lines] == [MAX_LINE, MAX_LINE]
    assert len(rest) == 5


def test_a_pipe_is_read_without_blocking() -> None:
    reading, writing = os.pipe()
    reader = LineReader(reading)
    assert reader.read() == []
    os.write(writing, b"one\ntwo\nthr")
    assert reader.read() == [b"one\n", b"two\n"]
    os.write(writing, b"ee\nend")
    os.close(writing)
    assert reader.read() == [b"three\n"]
    assert reader.read() == [b"end"]
    assert reader.ended


def test_remaining_output_is_read_although_the_pipe_is_still_open() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"last\nline")
    assert LineReader(reading).drain() == [b"last\n", b"line"]
