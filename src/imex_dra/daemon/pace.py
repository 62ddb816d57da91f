"""How often the daemon is asked how it is: the more, the more is about to change."""

from typing import NamedTuple

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.link import DaemonState
from imex_dra.imex.membership import Membership


class Pace(NamedTuple):
    """Seconds between two questions."""

    eager: float = 0.2
    """Until it is READY."""
    watchful: float = 1.0
    """Until all members are connected."""
    calm: float = 5.0

    def pause(self, applied: Membership | None, state: DaemonState) -> float:
        if applied is None:
            return self.calm
        if state.state is not ImexState.READY:
            return self.eager
        others = {int(slot) for slot in applied.addresses} - {applied.own_slot}
        return self.calm if others <= set(state.connected) else self.watchful
