"""What one daemon knows of its connection to one peer, and when what it imported from there is lost.

Pure: each event gives the next value and says whether to clean up. The invariants: memory of an instance is
cleaned up at most once, and before any memory of its successor is imported; a link that comes back in time with
the same instance has lost nothing; a link that saw another node map stays disabled until this daemon restarts.
"""

from typing import NamedTuple

from imex_dra.softimex.identity import Identity, mismatch
from imex_dra.softimex.states import LinkState

FOREVER = -1


class Link(NamedTuple):
    state: LinkState = LinkState.NEVER_CONNECTED
    instance: str = ""
    """The last instance we were connected to, while what it exported may still be mapped."""
    lost_at: float = 0.0
    barred: bool = False


class Change(NamedTuple):
    link: Link
    cleanup: bool = False


def greeted(link: Link, ours: Identity, theirs: Identity, accepted: bool) -> Change:
    """The peer answered our greeting: connected, unless either side finds a mismatch."""
    found = mismatch(ours, theirs)
    state = found or (LinkState.CONNECTED if accepted else LinkState.NODE_MAP_MISMATCH)
    restarted = link.instance not in ("", theirs.instance)
    connected = state is LinkState.CONNECTED
    kept = "" if restarted else link.instance
    return Change(
        Link(
            state=state,
            instance=theirs.instance if connected else kept,
            barred=found is LinkState.NODE_MAP_MISMATCH,
        ),
        cleanup=restarted,
    )


def lost(link: Link, now: float, grace: int) -> Change:
    """The connection broke, and nobody said goodbye."""
    if link.state is LinkState.CONNECTED:
        link = link._replace(state=LinkState.RECOVERING, lost_at=now)
    return waited(link, now, grace)


def waited(link: Link, now: float, grace: int) -> Change:
    """Time passed; after the grace time a lost peer is given up."""
    if link.state is not LinkState.RECOVERING or grace == FOREVER or now - link.lost_at < grace:
        return Change(link)
    return Change(link._replace(state=LinkState.DISCONNECTED, instance=""), cleanup=True)


def left(link: Link) -> Change:
    """The peer said goodbye: what it exported is gone now."""
    return Change(
        link._replace(state=LinkState.DISCONNECTED, instance=""),
        cleanup=bool(link.instance),
    )
