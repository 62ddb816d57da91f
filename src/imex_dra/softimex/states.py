"""The words that `nvidia-imex-ctl` prints for daemons, connections and domains."""

from collections.abc import Iterable
from enum import Enum, IntEnum


class DaemonState(IntEnum):
    """Numbered as monitoring tools know them."""

    INITIALIZING = 0
    STARTING_AUTH_SERVER = 1
    WAITING_FOR_PEERS = 2
    WAITING_FOR_RECOVERY = 3
    INIT_GPU = 4
    READY = 5
    SHUTTING_DOWN = 6
    UNAVAILABLE = 7


class LinkState(Enum):
    """The value is the letter in the connectivity table."""

    INVALID = "I"
    NEVER_CONNECTED = "N"
    RECOVERING = "R"
    DISCONNECTED = "D"
    AUTHENTICATING = "A"
    VERSION_MISMATCH = "!V!"
    NODE_MAP_MISMATCH = "!M!"
    CONNECTED = "C"


class DomainState(Enum):
    UP = "UP"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"


def domain_state(daemons: Iterable[DaemonState], links: Iterable[LinkState]) -> DomainState:
    """UP if all are ready and connected, DOWN if none is ready, DEGRADED in between."""
    ready = [state is DaemonState.READY for state in daemons]
    if not any(ready):
        return DomainState.DOWN
    connected = all(state is LinkState.CONNECTED for state in links)
    return DomainState.UP if all(ready) and connected else DomainState.DEGRADED
