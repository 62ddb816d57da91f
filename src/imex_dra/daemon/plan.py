"""What a new member list means for a running daemon. Restarting it tears down every import of every workload
that touches this node, so it is done only where IMEX leaves no other way.
"""

from enum import Enum, auto

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


def _identity(membership: Membership) -> tuple[object, ...]:
    return (
        membership.partition,
        membership.slots,
        membership.name_format,
        membership.own_slot,
        membership.own_address,
    )
