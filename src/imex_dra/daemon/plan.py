"""What a new member list means for a running daemon. Restarting it tears down every import of every workload
that touches this node, so it is done only where IMEX leaves no other way.
"""

from enum import Enum, auto
from typing import NamedTuple

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.membership import Membership


class Step(Enum):
    NOTHING = auto()
    START = auto()
    RESTART = auto()
    """The node map or the own slot or address changed: IMEX reads these only at start."""
    REMAP = auto()
    """Others moved: rewrite the hosts file, and tell IMEX to look again."""


def next_step(running: Membership | None, wanted: Membership) -> Step:
    if running is None:
        return Step.START
    if _identity(running) != _identity(wanted):
        return Step.RESTART
    return Step.NOTHING if running.addresses == wanted.addresses else Step.REMAP


def supersedes(new: Membership, old: Membership | None) -> bool:
    """Two node programs may speak for a moment, during an update; the older list must not win."""
    return old is None or new.partition != old.partition or new.generation >= old.generation


class Recovery(NamedTuple):
    """After an unclean exit IMEX waits until all who had imported from it know of that. Those that never come
    back would keep it, and every workload of this node, waiting for ever.
    """

    waiting_since: float | None = None
    given_up: bool = False

    @property
    def quorum(self) -> str:
        """What a daemon that is started now has to wait for."""
        return "NONE" if self.given_up else "RECOVERY"

    def seen(self, state: ImexState, now: float, patience: float) -> "Recovery":
        if state is ImexState.READY:
            return Recovery()
        if state is not ImexState.WAITING_FOR_RECOVERY or self.given_up:
            return self
        since = now if self.waiting_since is None else self.waiting_since
        return Recovery(since, given_up=now - since >= patience)


def _identity(membership: Membership) -> tuple[object, ...]:
    return (
        membership.partition,
        membership.slots,
        membership.name_format,
        membership.own_slot,
        membership.own_address,
    )
