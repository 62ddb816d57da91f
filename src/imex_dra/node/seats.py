"""Seats: how many claims the node can hold, offered while it can serve them.

Withdrawing seats harms no claim that is allocated, but every change of a slice wakes all pending pods that use
DRA; so a daemon that blinks must not make the slice blink.
"""

from enum import StrEnum

from msgspec import Struct, structs

from imex_dra.api.meta import ObjectMeta, OwnerReference
from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.reasons import Reason
from imex_dra.api.views import AttributeValue, Device, Pool, ResourceSlice, ResourceSliceSpec
from imex_dra.node.readiness import Knowledge, connected_to_all, obstacle

SEATS = 16
WITHDRAW_AFTER = 15.0
RESTORE_AFTER = 5.0


class Offer(StrEnum):
    NEVER = "never"
    OFFERED = "offered"
    WITHDRAWN = "withdrawn"


class Seating(Struct, frozen=True):
    """Whether seats are offered, and since when the facts say otherwise."""

    offer: Offer = Offer.NEVER
    doubt_since: float | None = None

    @property
    def offered(self) -> bool:
        return self.offer is Offer.OFFERED


def next_seating(seating: Seating, known: Knowledge, now: float) -> tuple[Seating, float | None]:
    """The seating now, and after how many seconds to look again although nothing changed."""
    hindrance = obstacle(known)
    if hindrance is not None and hindrance.reason is Reason.FABRIC_BROKEN:
        return Seating(Offer.NEVER if seating.offer is Offer.NEVER else Offer.WITHDRAWN), None
    able = hindrance is None
    if seating.offer is Offer.NEVER:
        first = able and (known.reading.fabric.state is FabricState.NONE or connected_to_all(known))
        return (Seating(Offer.OFFERED) if first else seating), None
    if able == seating.offered:
        return structs.replace(seating, doubt_since=None), None
    patience = WITHDRAW_AFTER if seating.offered else RESTORE_AFTER
    since = now if seating.doubt_since is None else seating.doubt_since
    remaining = since + patience - now
    if remaining <= 0:
        return Seating(Offer.OFFERED if able else Offer.WITHDRAWN), None
    return structs.replace(seating, doubt_since=since), remaining


def seats_of(known: Knowledge, seats: int = SEATS) -> tuple[Device, ...]:
    """Every attribute on every seat: a selector on a missing one would stop scheduling everywhere."""
    shared = {
        "type": AttributeValue(string="channel"),
        "id": AttributeValue(integer=0),
        "clique": AttributeValue(string=known.reading.partition),
        "fabric": AttributeValue(string=known.reading.fabric.state),
    }
    return tuple(
        Device(f"channel-{seat}", {**shared, "seat": AttributeValue(integer=seat)}) for seat in range(seats)
    )


def seats_slice(known: Knowledge, owner: OwnerReference) -> ResourceSlice:
    return ResourceSlice(
        ObjectMeta(name=f"imex-{known.node}", owner_references=(owner,)),
        ResourceSliceSpec(
            driver=DRIVER,
            pool=Pool(known.node, generation=1, resource_slice_count=1),
            node_name=known.node,
            devices=seats_of(known),
        ),
    )
