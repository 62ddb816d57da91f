"""The state of the connection to a peer, in examples and against a model."""

from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex.peerstate import (
    WAIT_FOREVER,
    ConnectionState,
    Identity,
    PeerState,
    Transition,
    connection_lost,
    handshake_completed,
    peer_shut_down,
    time_passed,
)

OURS = Identity(0, "ours", "580.1", "map")
PEER = Identity(1, "one", "580.1", "map")


def connect(state: PeerState | None = None, instance: str = "one") -> PeerState:
    return handshake_completed(state or PeerState(), OURS, PEER._replace(instance=instance), accepted=True).state


def test_a_new_peer_was_never_connected() -> None:
    assert PeerState().connection is ConnectionState.NEVER_CONNECTED
    assert connection_lost(PeerState(), 1, 0) == Transition(PeerState())


def test_the_same_instance_may_reconnect_within_the_grace_time() -> None:
    lost = connection_lost(connect(), now=10, grace=5)
    assert (lost.state.connection, lost.cleanup) == (ConnectionState.RECOVERING, False)
    assert not time_passed(lost.state, 14.9, 5).cleanup
    reconnected = handshake_completed(lost.state, OURS, PEER, accepted=True)
    assert (reconnected.state.connection, reconnected.cleanup) == (ConnectionState.CONNECTED, False)


def test_the_grace_time_ends_with_exactly_one_cleanup() -> None:
    lost = connection_lost(connect(), now=10, grace=5).state
    expired = time_passed(lost, 15, 5)
    assert (expired.state.connection, expired.cleanup) == (ConnectionState.DISCONNECTED, True)
    assert time_passed(expired.state, 99, 5) == Transition(expired.state)


def test_a_grace_time_of_zero_cleans_up_immediately_and_minus_one_never() -> None:
    assert connection_lost(connect(), 10, 0).cleanup
    lost = connection_lost(connect(), 10, WAIT_FOREVER).state
    assert not time_passed(lost, 1e9, WAIT_FOREVER).cleanup


def test_a_restarted_peer_is_cleaned_up_when_it_reconnects() -> None:
    lost = connection_lost(connect(), 10, WAIT_FOREVER).state
    reconnected = handshake_completed(lost, OURS, PEER._replace(instance="two"), accepted=True)
    assert reconnected == Transition(PeerState(ConnectionState.CONNECTED, "two"), cleanup=True)


def test_a_peer_that_shuts_down_is_cleaned_up_immediately() -> None:
    shut_down = peer_shut_down(connect())
    assert (shut_down.state.connection, shut_down.cleanup) == (ConnectionState.DISCONNECTED, True)


def test_a_version_mismatch_ends_when_the_peer_restarts_with_the_same_version() -> None:
    other = handshake_completed(PeerState(), OURS, PEER._replace(version="570.1"), accepted=False).state
    assert (other.connection, other.disabled) == (ConnectionState.VERSION_MISMATCH, False)
    assert connect(other, "two").connection is ConnectionState.CONNECTED


def test_a_different_node_map_disables_the_peer_but_a_refusal_by_the_peer_does_not() -> None:
    other = handshake_completed(PeerState(), OURS, PEER._replace(map_key="other"), accepted=False).state
    assert (other.connection, other.disabled) == (ConnectionState.NODE_MAP_MISMATCH, True)
    refused = handshake_completed(PeerState(), OURS, PEER, accepted=False).state
    assert (refused.connection, refused.disabled) == (ConnectionState.NODE_MAP_MISMATCH, False)


events = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from(["one", "two", "three"])),
    st.tuples(st.sampled_from(["lost", "shutdown", "tick"]), st.just("")),
)


@given(st.lists(events), st.sampled_from([WAIT_FOREVER, 0, 1, 3]))
def test_imports_are_cleaned_up_exactly_when_they_are_lost(events: list[tuple[str, str]], grace: int) -> None:
    """One second per event. The model tracks the instance that memory is imported from."""
    state, imported, lost_at = PeerState(), "", None
    for now, (event, instance) in enumerate(events):
        if event == "handshake":
            transition = handshake_completed(state, OURS, PEER._replace(instance=instance), accepted=True)
            expected = imported not in ("", instance)
            imported, lost_at = instance, None
        elif event == "shutdown":
            transition = peer_shut_down(state)
            expected, imported, lost_at = bool(imported), "", None
        else:
            function = connection_lost if event == "lost" else time_passed
            transition = function(state, now, grace)
            if event == "lost" and state.connection is ConnectionState.CONNECTED:
                lost_at = now
            expected = bool(imported) and lost_at is not None and grace >= 0 and now - lost_at >= grace
            imported = "" if expected else imported
        assert transition.cleanup == expected
        state = transition.state
        assert bool(state.instance) == bool(imported)
