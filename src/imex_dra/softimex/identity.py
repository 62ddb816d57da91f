"""What a daemon says of itself when a connection begins, and whether two of them may talk."""

from typing import NamedTuple

from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Message, number, text
from imex_dra.softimex.states import LinkState


class Identity(NamedTuple):
    slot: int
    instance: str
    """New at every start: who is another instance has lost all that the former one exported."""
    version: str
    map_key: str


def describe(identity: Identity) -> Message:
    return {
        "slot": identity.slot,
        "instance": identity.instance,
        "version": identity.version,
        "map": identity.map_key,
    }


def identify(message: object) -> Identity:
    if not isinstance(message, dict):
        raise Malformed("it did not introduce itself")
    return Identity(
        slot=number(message, "slot", 0, 2**16 - 1),
        instance=text(message, "instance", 16),
        version=text(message, "version", 64),
        map_key=text(message, "map", 64),
    )


def mismatch(ours: Identity, theirs: Identity) -> LinkState | None:
    if ours.map_key != theirs.map_key:
        return LinkState.NODE_MAP_MISMATCH
    if ours.version != theirs.version:
        return LinkState.VERSION_MISMATCH
    return None
