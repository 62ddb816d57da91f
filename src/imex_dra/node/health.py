"""The health of the node's channel devices: whether a pod that already uses one can still reach its peers.

It follows from the same `Snapshot` as publication, with the same delay: a daemon that restarts makes no device
unhealthy. All devices of a node are equal, and so is their health.
"""

from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from imex_dra.api.reasons import Reason
from imex_dra.base.clock import Clock
from imex_dra.base.waiting import wait_any
from imex_dra.dra.health import DeviceHealth, HealthState
from imex_dra.node.devices import WITHDRAW_AFTER, device_names
from imex_dra.node.grant import Snapshot, node_obstacle
from imex_dra.node.state import NodeState

_UNKNOWN = {Reason.FABRIC_PENDING, Reason.NOT_A_MEMBER, Reason.PARTITION_NOT_RECEIVED}
"""Obstacles that say nothing about pods that run: the hardware was not read, or the controller has not decided."""


class Health(Struct, frozen=True):
    state: HealthState = HealthState.UNKNOWN
    message: str = ""
    unready_since: float | None = None
    """When the IMEX daemon became unusable."""


def next_health(health: Health, snapshot: Snapshot, now: float) -> tuple[Health, float | None]:
    """The health now, and after how many seconds to decide again although nothing changed."""
    obstacle = node_obstacle(snapshot)
    # Another driver in the cluster keeps new pods away, and does not harm those that run.
    if obstacle is None or obstacle.explanation.reason is Reason.OTHER_DRIVER_PRESENT:
        return Health(HealthState.HEALTHY), None
    reason, message = obstacle.explanation.reason, obstacle.explanation.message()
    if reason in _UNKNOWN:
        return Health(HealthState.UNKNOWN, message), None
    if reason is Reason.FABRIC_BROKEN:
        return Health(HealthState.UNHEALTHY, message), None
    since = now if health.unready_since is None else health.unready_since
    remaining = since + WITHDRAW_AFTER - now
    if remaining <= 0 or health.state is HealthState.UNHEALTHY:
        return Health(HealthState.UNHEALTHY, message, since), None
    return Health(health.state, health.message, since), remaining


class NodeHealth:
    """What the kubelet watches. Each stream decides for itself: a kubelet that has just started knows nothing."""

    def __init__(self, state: NodeState, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    async def watch_health(self, refresh: float) -> AsyncIterator[Sequence[DeviceHealth]]:
        health, sent, due = Health(), None, 0.0
        while True:
            changed, snapshot, now = self._state.changed, self._state.snapshot, self._clock.monotonic()
            health, again = next_health(health, snapshot, now)
            # Most changes of the snapshot concern claims, and no device's health.
            if sent != (health.state, health.message) or now >= due:
                sent, due = (health.state, health.message), now + refresh
                yield [DeviceHealth(snapshot.node, name, *sent) for name in device_names(snapshot.max_claims)]
            await wait_any(changed, timeout=min(due - now, again or refresh))
