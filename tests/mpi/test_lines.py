import os

from hypothesis import given
from hypothesis import strategies as st

from imex_dra.sandbox.mpi.lines import LONGEST, LineReader, cut


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"x", b"\n")), max_size=8))
def test_no_byte_is_lost_and_every_line_is_whole(chunks: list[bytes]) -> None:
    lines, rest = [], b""
    for chunk in chunks:
        found, rest = cut(rest + chunk)
        lines += found
    assert b"".join(lines) + rest == b"".join(chunks)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert b"\n" not in rest


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    lines, rest = cut(b"a" * (2 * LONGEST + 5))
    assert [len(line) for line in lines] == [LONGEST, LONGEST]
    assert len(rest) == 5


def test_a_pipe_is_read_without_waiting() -> None:
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


def test_what_a_dead_writer_left_is_read_though_somebody_holds_the_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"last\nwords")
    assert LineReader(reading).drain() == [b"last\n", b"words"]
