"""How soon the daemon is asked again."""

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.pace import Pace
from imex_dra.imex.link import DaemonState
from imex_dra.imex.membership import Membership

PACE = Pace(eager=1, watchful=2, calm=3)
LIST = Membership("7b.1", 5, 24, "imex-0a1b2c3d-%03d", {"0": "10.0.0.1", "1": "10.0.0.2"}, 0, "10.0.0.1")


@pytest.mark.parametrize(
    ("applied", "state", "connected", "pause"),
    [
        (None, ImexState.UNAVAILABLE, (), PACE.calm),
        (LIST, ImexState.UNAVAILABLE, (), PACE.eager),
        (LIST, ImexState.WAITING_FOR_RECOVERY, (1,), PACE.eager),
        (LIST, ImexState.READY, (), PACE.watchful),
        (LIST, ImexState.READY, (1,), PACE.calm),
    ],
)
def test_the_more_is_about_to_change_the_sooner(
    applied: Membership | None, state: ImexState, connected: tuple[int, ...], pause: float
) -> None:
    assert PACE.pause(applied, DaemonState(state, connected=connected)) == pause
