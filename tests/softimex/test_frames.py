import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.softimex import frames
from imex_dra.softimex.errors import Malformed

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=5)


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 500), max_size=10))
def test_messages_survive_any_way_of_cutting_the_stream(sent: list[frames.Message], cuts: list[int]) -> None:
    stream = b"".join(frames.encode(message) for message in sent)
    decoder, got = frames.Decoder(), []
    for begin, end in itertools.pairwise([0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]):
        got += decoder.feed(stream[begin:end])
    assert got == sent
    assert not decoder.partial


@given(st.binary(max_size=400))
def test_any_bytes_are_messages_or_malformed(data: bytes) -> None:
    try:
        assert all(isinstance(message, dict) for message in frames.Decoder().feed(data))
    except Malformed:
        return


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{", b"\xff", b"[" * 60000, b'{"a":' * 10000, b"9" * 60000, b'"' + b"\\u0000" * 9],
)
def test_what_is_no_object_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        frames.Decoder().feed(len(body).to_bytes(4) + body)


def test_a_frame_that_is_too_long_is_refused_by_its_length_alone() -> None:
    with pytest.raises(Malformed, match="65537"):
        frames.Decoder().feed((frames.LIMIT + 1).to_bytes(4))
    with pytest.raises(Malformed):
        frames.encode({"a": "x" * frames.LIMIT})


def test_a_frame_of_the_greatest_length_passes() -> None:
    message = {"a": "x" * (frames.LIMIT - len(json.dumps({"a": ""}, separators=(",", ":"))))}
    assert frames.Decoder().feed(frames.encode(message)) == [message]


@pytest.mark.parametrize("value", [None, True, "1", 1.5, -1, 10])
def test_a_number_is_whole_and_within_its_bounds(value: object) -> None:
    assert frames.number({"n": 9}, "n", 0, 9) == 9
    with pytest.raises(Malformed, match="'n'"):
        frames.number({"n": value}, "n", 0, 9)


@pytest.mark.parametrize("value", [None, 1, "x" * 9, "a\nb", "\ud800"])
def test_a_text_is_short_and_printable(value: object) -> None:
    assert frames.text({"t": "x" * 8}, "t", 8) == "x" * 8
    with pytest.raises(Malformed, match="'t'"):
        frames.text({"t": value}, "t", 8)
