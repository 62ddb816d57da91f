"""The state of the connection to one peer, and when the memory imported from it is lost.

Pure: each event returns the next state and whether to clean up the imports. Invariants:

- Imports from an instance are cleaned up at most once, and before memory of its successor is imported.
- A peer that reconnects within the grace time as the same instance has lost nothing.
- A peer with a different node map stays disabled until this daemon restarts.
"""

from enum import Enum
from typing import NamedTuple

from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.frames import Message, number, text

WAIT_FOREVER = -1


class ConnectionState(Enum):
    """The states that `nvidia-imex-ctl` prints; the value is the letter in the connectivity table."""

    INVALID = "I"
    NEVER_CONNECTED = "N"
    RECOVERING = "R"
    DISCONNECTED = "D"
    AUTHENTICATING = "A"
    VERSION_MISMATCH = "!V!"
    NODE_MAP_MISMATCH = "!M!"
    CONNECTED = "C"


class Identity(NamedTuple):
    """How a daemon identifies itself when a connection opens."""

    node_index: int
    instance: str
    """Random, new at every start. A different instance no longer has what the previous one exported."""
    version: str
    map_key: str

    def message(self) -> Message:
        return {
            "index": self.node_index,
            "instance": self.instance,
            "version": self.version,
            "map": self.map_key,
        }


def parse_identity(message: object) -> Identity:
    if not isinstance(message, dict):
        raise Malformed("the first message is not a handshake")
    return Identity(
        node_index=number(message, "index", 0, 2**16 - 1),
        instance=text(message, "instance", 16),
        version=text(message, "version", 64),
        map_key=text(message, "map", 64),
    )


def mismatch(ours: Identity, theirs: Identity) -> ConnectionState | None:
    """Why two daemons must not communicate, or None."""
    if ours.map_key != theirs.map_key:
        return ConnectionState.NODE_MAP_MISMATCH
    if ours.version != theirs.version:
        return ConnectionState.VERSION_MISMATCH
    return None


class PeerState(NamedTuple):
    connection: ConnectionState = ConnectionState.NEVER_CONNECTED
    instance: str = ""
    """The last instance that was connected, as long as memory that it exported may still be mapped."""
    lost_at: float = 0.0
    disabled: bool = False


class Transition(NamedTuple):
    state: PeerState
    cleanup: bool = False


def handshake_completed(state: PeerState, ours: Identity, theirs: Identity, accepted: bool) -> Transition:
    """The peer answered our handshake: connected, unless either side found a mismatch."""
    found = mismatch(ours, theirs)
    connection = found or (ConnectionState.CONNECTED if accepted else ConnectionState.NODE_MAP_MISMATCH)
    restarted = state.instance not in ("", theirs.instance)
    kept = "" if restarted else state.instance
    return Transition(
        PeerState(
            connection=connection,
            instance=theirs.instance if connection is ConnectionState.CONNECTED else kept,
            # A peer that refused us has us disabled, not the other way round: keep trying until it restarts.
            disabled=found is ConnectionState.NODE_MAP_MISMATCH,
        ),
        cleanup=restarted,
    )


def connection_lost(state: PeerState, now: float, grace: int) -> Transition:
    """The connection broke without a shutdown message."""
    if state.connection is ConnectionState.CONNECTED:
        state = state._replace(connection=ConnectionState.RECOVERING, lost_at=now)
    return time_passed(state, now, grace)


def time_passed(state: PeerState, now: float, grace: int) -> Transition:
    """Disconnect a recovering peer after the grace time."""
    waiting = grace == WAIT_FOREVER or now - state.lost_at < grace
    if state.connection is not ConnectionState.RECOVERING or waiting:
        return Transition(state)
    return Transition(state._replace(connection=ConnectionState.DISCONNECTED, instance=""), cleanup=True)


def peer_shut_down(state: PeerState) -> Transition:
    """The peer announced its shutdown, so the memory that it exported is already gone."""
    return Transition(
        state._replace(connection=ConnectionState.DISCONNECTED, instance=""),
        cleanup=bool(state.instance),
    )
