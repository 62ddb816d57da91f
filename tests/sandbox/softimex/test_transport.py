"""Frames, the event loop and the timeouts of a stream."""

import itertools
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex import frames
from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.loop import READ, Loop
from imex_sandbox.softimex.stream import Security, Stream

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=5)


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 500), max_size=10))
def test_messages_are_decoded_however_the_stream_is_split(sent: list[frames.Message], cuts: list[int]) -> None:
    stream = b"".join(frames.encode(message) for message in sent)
    decoder, got = frames.Decoder(), []
    for begin, end in itertools.pairwise([0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]):
        got += decoder.feed(stream[begin:end])
    assert got == sent
    assert not decoder.partial


@given(st.binary(max_size=400))
def test_any_bytes_decode_to_messages_or_are_malformed(data: bytes) -> None:
    try:
        assert all(isinstance(message, dict) for message in frames.Decoder().feed(data))
    except Malformed:
        return


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{", b"\xff", b"[" * 60000, b'{"a":' * 10000, b"9" * 60000, b'"' + b"\\u0000" * 9],
)
def test_a_body_that_is_not_a_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        frames.Decoder().feed(len(body).to_bytes(4) + body)


def test_a_frame_over_the_limit_is_refused_by_its_length_prefix() -> None:
    with pytest.raises(Malformed, match="65537"):
        frames.Decoder().feed((frames.LIMIT + 1).to_bytes(4))
    with pytest.raises(Malformed):
        frames.encode({"a": "x" * frames.LIMIT})


def test_a_frame_of_the_maximum_size_is_accepted() -> None:
    message = {"a": "x" * (frames.LIMIT - len(json.dumps({"a": ""}, separators=(",", ":"))))}
    assert frames.Decoder().feed(frames.encode(message)) == [message]


@pytest.mark.parametrize("value", [None, True, "1", 1.5, -1, 10])
def test_a_number_field_must_be_an_integer_within_its_bounds(value: object) -> None:
    assert frames.number({"n": 9}, "n", 0, 9) == 9
    with pytest.raises(Malformed, match="'n'"):
        frames.number({"n": value}, "n", 0, 9)


@pytest.mark.parametrize("value", [None, 1, "x" * 9, "a\nb", "\ud800"])
def test_a_text_field_must_be_short_and_printable(value: object) -> None:
    assert frames.text({"t": "x" * 8}, "t", 8) == "x" * 8
    with pytest.raises(Malformed, match="'t'"):
        frames.text({"t": value}, "t", 8)


def test_an_exception_is_reported_and_ends_only_its_callback() -> None:
    loop, reports, calls = Loop(), list[str](), list[str]()
    loop.on_exception = reports.append
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.watch(ours, READ, lambda _: calls.append("socket" if ours.recv(1) == b"x" else str(1 / 0)))
        loop.call_later(0, lambda: calls.append(str(1 / 0)))
        loop.call_later(0, lambda: calls.append("timer"))
        theirs.send(b"yx")
        loop.step()
        loop.step()
    loop.close()
    assert calls == ["timer", "socket"]
    assert ["ZeroDivisionError" in report for report in reports] == [True, True]


class EndlessHandshake:
    def secure(self, sock: socket.socket) -> socket.socket:
        return sock

    def handshake(self, sock: socket.socket) -> None:
        raise BlockingIOError

    def receive(self, sock: socket.socket, size: int) -> bytes:
        raise BlockingIOError

    def send(self, sock: socket.socket, data: bytes) -> int:
        raise BlockingIOError


@pytest.mark.parametrize(("security", "in_time", "too_late"), [(None, 2, 30), (EndlessHandshake(), 29, 31)])
def test_a_tls_handshake_may_take_longer_than_a_frame(
    security: Security | None, in_time: float, too_late: float
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = Stream(Loop(), ours, security)
        assert not stream.timed_out(stream.received_at + in_time)
        assert stream.timed_out(stream.received_at + too_late)
