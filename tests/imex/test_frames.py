"""Frames between the node program and the agent: whole messages, or a word about what is wrong with them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import Rejected
from imex_dra.imex.link import LONGEST, DaemonState, frame, messages
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


async def heard(*chunks: bytes) -> list[DaemonState]:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return [message async for message in messages(reader, DaemonState)]


@given(states=st.lists(STATES, max_size=4), cut=st.integers(1, 50))
def test_what_is_said_is_what_is_heard_however_it_is_cut(states: list[DaemonState], cut: int) -> None:
    stream = b"".join(frame(state) for state in states)
    chunks = [stream[start : start + cut] for start in range(0, len(stream), cut)]
    assert run(heard(*chunks)) == states


@given(state=STATES, lost=st.integers(1, 40))
def test_half_a_message_at_the_end_is_no_message(state: DaemonState, lost: int) -> None:
    whole = frame(state)
    assert run(heard(whole, whole[:-lost])) == [state]


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"\0\0\0\2[]", "not a DaemonState: Expected `object`, got `array`"),
        (b"\0\0\0\1{", "not a DaemonState: Input data was truncated"),
        (b"\0\0\0\0", "not a DaemonState: Input data was truncated"),
        (b'\0\0\0\x0f{"state":"FINE"}'[:4] + b'{"state":"NO!"}', "not a DaemonState: Invalid enum value 'NO!'"),
        (b'\0\0\0\x0e{"problem":"\xff"}', "not a DaemonState: 'utf-8' codec can't decode"),
        (b"\0\1\0\1", "a message of 65537 bytes is too long: 65536 are allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes is too long"),
    ],
)
async def test_what_is_no_message_is_refused_with_the_reason(sent: bytes, complaint: str) -> None:
    with pytest.raises(Rejected) as refused:
        await heard(sent)
    assert str(refused.value).startswith(complaint)


async def test_fields_of_a_later_version_are_no_reason_to_refuse() -> None:
    body = b'{"state":"READY","slot":3,"mood":"fine"}'
    assert await heard(len(body).to_bytes(4, "big") + body) == [DaemonState(ImexState.READY, slot=3)]


def test_a_message_that_is_too_long_is_not_sent() -> None:
    frame(DaemonState(problem="x" * (LONGEST - 200)))
    with pytest.raises(Rejected, match="too long: 65536 are allowed"):
        frame(DaemonState(problem="x" * LONGEST))
