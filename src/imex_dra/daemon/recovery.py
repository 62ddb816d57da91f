"""After an unclean exit IMEX waits until all who had imported from it know of that. Those that never come back
would keep it, and every workload of this node, waiting for ever.
"""

from typing import NamedTuple

from imex_dra.api.nvlinknode import ImexState


class Recovery(NamedTuple):
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


def problem(state: ImexState, patience: float, *, alone: bool) -> str:
    """What to say of a daemon that answers; `alone` is one that was told to wait for nobody."""
    if state is ImexState.WAITING_FOR_RECOVERY:
        return f"it ended uncleanly and waits, {patience:g} s at most, for nodes that had imported from it"
    if alone:
        return (
            "it was restarted without waiting: nodes that had imported from it did not come within"
            f" {patience:g} s, and a job that still runs there may use memory that is gone"
        )
    return ""
