"""The health that the kubelet shows for channel devices in the status of pods."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.meta import OTHER_DRIVER, Condition
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.dra.health import DeviceHealth, HealthState
from imex_dra.node.devices import WITHDRAW_AFTER, channel_devices
from imex_dra.node.grant import Snapshot
from imex_dra.node.health import Health, NodeHealth, next_health
from imex_dra.node.state import NodeState
from tests.node.snapshots import HEALTHY, NODE, daemon, healthy_except, member, partition, reading
from tests.virtual import LoopClock, run

NOT_READY = healthy_except(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
PENDING = healthy_except(reading=reading(FabricState.PENDING))
BROKEN = healthy_except(reading=reading(FabricState.BROKEN, "a GPU is gone"))
NO_FABRIC = healthy_except(
    reading=reading(FabricState.NONE), watched_partition=None, daemon=daemon(ImexState.UNAVAILABLE)
)
NO_PARTITION = healthy_except(watched_partition=None)
OTHER_INDEX = healthy_except(watched_partition=partition(member(index=3)))
MOVED = healthy_except(watched_partition=partition(), foreign_claims=("team/claim",))
SNAPSHOTS = [HEALTHY, NOT_READY, PENDING, BROKEN, NO_FABRIC, NO_PARTITION, OTHER_INDEX, MOVED]


def with_other_driver() -> Snapshot:
    assert HEALTHY.partition is not None
    conditions = (Condition(OTHER_DRIVER, "True", "OtherDriverPresent", "2026-01-01T00:00:00Z", "found"),)
    status = structs.replace(HEALTHY.partition.status, conditions=conditions)
    return healthy_except(watched_partition=structs.replace(HEALTHY.partition, status=status))


UNKNOWN, IS_HEALTHY, UNHEALTHY = HealthState.UNKNOWN, HealthState.HEALTHY, HealthState.UNHEALTHY


@pytest.mark.parametrize(
    ("before", "snapshot", "after", "again"),
    [
        (Health(), Snapshot(NODE), UNKNOWN, None),
        (Health(), HEALTHY, IS_HEALTHY, None),
        (Health(), NO_FABRIC, IS_HEALTHY, None),
        (Health(), with_other_driver(), IS_HEALTHY, None),
        (Health(IS_HEALTHY), PENDING, UNKNOWN, None),
        (Health(IS_HEALTHY), NO_PARTITION, UNKNOWN, None),
        (Health(IS_HEALTHY), BROKEN, UNHEALTHY, None),
        (Health(), NOT_READY, UNKNOWN, 15),
        (Health(IS_HEALTHY), NOT_READY, IS_HEALTHY, 15),
        (Health(IS_HEALTHY, "", 90), NOT_READY, IS_HEALTHY, 5),
        (Health(IS_HEALTHY, "", 85), NOT_READY, UNHEALTHY, None),
        (Health(IS_HEALTHY, "", 85), OTHER_INDEX, UNHEALTHY, None),
        (Health(IS_HEALTHY, "", 85), MOVED, UNHEALTHY, None),
        (Health(UNHEALTHY, "broken"), NOT_READY, UNHEALTHY, None),
        (Health(UNHEALTHY, "", 85), HEALTHY, IS_HEALTHY, None),
    ],
)
def test_health_follows_the_node(before: Health, snapshot: Snapshot, after: HealthState, again: float) -> None:
    health, delay = next_health(before, snapshot, 100.0)
    assert (health.state, delay) == (after, again)


def test_an_unhealthy_device_says_why() -> None:
    broken, _ = next_health(Health(), BROKEN, 0.0)
    assert broken.message.startswith("n1: the NVLink fabric is broken (a GPU is gone)")
    waiting, _ = next_health(Health(IS_HEALTHY, "", 0.0), NOT_READY, WITHDRAW_AFTER)
    assert waiting.message.startswith("the IMEX daemon of node n1 is WAITING_FOR_RECOVERY, not READY")


@given(st.lists(st.tuples(st.sampled_from(SNAPSHOTS), st.floats(0, 20)), max_size=20))
def test_a_daemon_makes_devices_unhealthy_only_after_the_delay(history: list[tuple[Snapshot, float]]) -> None:
    health, now, usable = Health(), 0.0, 0.0
    """`usable`: when the node was last known to serve, or not known at all."""
    for snapshot, pause in history:
        if snapshot in (HEALTHY, NO_FABRIC, PENDING, NO_PARTITION):
            usable = now
        before = health
        health, again = next_health(health, snapshot, now)
        if snapshot == BROKEN:
            assert health.state is UNHEALTHY
        elif health.state is UNHEALTHY and before.state is not UNHEALTHY:
            assert now - usable >= WITHDRAW_AFTER - 1e-6
        if snapshot == HEALTHY:
            assert health == Health(IS_HEALTHY)
        now += min(pause, again) if again is not None else pause


class Watch:
    """A kubelet that watches the health of a node, in virtual time."""

    def __init__(self) -> None:
        self.state = NodeState(NODE)
        self.clock = LoopClock()
        self.reports: AsyncIterator[Sequence[DeviceHealth]] = NodeHealth(self.state, self.clock).watch_health(10.0)

    def become(self, snapshot: Snapshot) -> None:
        fields: dict[str, Any] = structs.asdict(snapshot)
        del fields["partition_id"]  # follows from the reading
        self.state.update(**fields)

    async def next(self) -> tuple[float, HealthState]:
        """When the next report comes, and what it says about every device."""
        report = await anext(self.reports)
        assert [device.device for device in report] == [device.name for device in channel_devices(HEALTHY)]
        assert {device.pool for device in report} == {NODE}
        (state,) = {device.state for device in report}
        return round(self.clock.monotonic(), 3), state


def test_a_watching_kubelet_learns_of_changes_and_is_reminded_of_what_did_not_change() -> None:
    async def scenario() -> list[tuple[float, HealthState]]:
        watch = Watch()
        seen = [await watch.next()]
        watch.become(HEALTHY)
        seen += [await watch.next(), await watch.next()]
        watch.become(NOT_READY)
        seen += [await watch.next(), await watch.next()]
        watch.become(structs.replace(HEALTHY, unprepare_sequence=4))
        seen.append(await watch.next())
        watch.become(structs.replace(HEALTHY, unprepare_sequence=5))
        seen.append(await watch.next())
        return seen

    assert run(scenario()) == [
        (0, UNKNOWN),
        (0, IS_HEALTHY),
        (10, IS_HEALTHY),
        (20, IS_HEALTHY),
        (25, UNHEALTHY),
        (25, IS_HEALTHY),
        (35, IS_HEALTHY),
    ]
