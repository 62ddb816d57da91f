"""The messages between `imex node` and `imex daemon`: complete, or rejected with a reason."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import Rejected
from imex_dra.imex.link import MAX_MESSAGE_SIZE, DaemonState, frame, messages
from tests.virtual import run

STATES = st.builds(
    DaemonState,
    st.sampled_from(ImexState),
    st.text(max_size=20),
    st.integers(-1, 4095),
    st.integers(0, 2**53),
    st.lists(st.integers(0, 4095), max_size=30).map(tuple),
    st.text(max_size=50),
)


async def received(*chunks: bytes) -> list[DaemonState]:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return [message async for message in messages(reader, DaemonState)]


@given(states=st.lists(STATES, max_size=4), size=st.integers(1, 50))
def test_messages_arrive_unchanged_however_the_stream_is_split(states: list[DaemonState], size: int) -> None:
    stream = b"".join(frame(state) for state in states)
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert run(received(*chunks)) == states


@given(state=STATES, lost=st.integers(1, 40))
def test_a_truncated_message_at_the_end_is_dropped(state: DaemonState, lost: int) -> None:
    whole = frame(state)
    assert run(received(whole, whole[:-lost])) == [state]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\0\0\0\2[]", "not a DaemonState: Expected `object`, got `array`"),
        (b"\0\0\0\1{", "not a DaemonState: Input data was truncated"),
        (b"\0\0\0\0", "not a DaemonState: Input data was truncated"),
        (b'\0\0\0\x0f{"state":"FINE"}'[:4] + b'{"state":"NO!"}', "not a DaemonState: Invalid enum value 'NO!'"),
        (b'\0\0\0\x0e{"problem":"\xff"}', "not a DaemonState: 'utf-8' codec can't decode"),
        (b"\0\1\0\1", "a message of 65537 bytes is longer than the limit of 65536 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes is longer"),
    ],
)
async def test_anything_else_is_rejected_with_the_reason(sent: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as rejected:
        await received(sent)
    assert str(rejected.value).startswith(reason)


async def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    body = b'{"state":"READY","index":3,"later":"field"}'
    assert await received(len(body).to_bytes(4, "big") + body) == [DaemonState(ImexState.READY, index=3)]


def test_a_message_over_the_size_limit_is_not_sent() -> None:
    frame(DaemonState(problem="x" * (MAX_MESSAGE_SIZE - 200)))
    with pytest.raises(Rejected, match="longer than the limit of 65536 bytes"):
        frame(DaemonState(problem="x" * MAX_MESSAGE_SIZE))
