"""The metrics of `imex node`: the kubelet's calls, and what the node's snapshot says."""

from collections.abc import Iterator
from contextlib import contextmanager

from imex_dra.api.metrics import (
    DAEMON_STATE,
    FABRIC_STATE,
    NODE_PROBLEMS,
    PREPARE_ERRORS,
    PREPARES,
    REGISTRATION,
    UNPREPARE_ERRORS,
    UNPREPARES,
    UNREACHABLE,
    Outcome,
)
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, Terminal
from imex_dra.base.metrics import Metric, Metrics, Sample
from imex_dra.dra.plugin import ClaimId, Driver, PreparedDevice, Registration
from imex_dra.node.grant import Snapshot, node_obstacle


class MeasuredDriver:
    """A driver whose calls are counted."""

    def __init__(self, driver: Driver, metrics: Metrics, clock: Clock) -> None:
        self._driver = driver
        self._metrics = metrics
        self._clock = clock

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        with self._measured(PREPARES, PREPARE_ERRORS):
            return await self._driver.prepare(claim)

    async def unprepare(self, claim: ClaimId) -> None:
        with self._measured(UNPREPARES, UNPREPARE_ERRORS):
            await self._driver.unprepare(claim)

    @contextmanager
    def _measured(self, durations: Metric, errors: Metric) -> Iterator[None]:
        start, result = self._clock.monotonic(), Outcome.OK
        try:
            yield
        except Exception as error:
            result = Outcome.TERMINAL if isinstance(error, Terminal) else Outcome.RETRY
            self._metrics.count(errors, _reason(error))
            raise
        finally:
            self._metrics.observe(durations, self._clock.monotonic() - start, result)


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ImexError) else "") or type(error).__name__


def node_samples(snapshot: Snapshot, registration: Registration) -> Iterator[Sample]:
    yield Sample(REGISTRATION, float(not registration.problem))
    for daemon in ImexState:
        yield Sample(DAEMON_STATE, float(daemon is snapshot.daemon.state), (daemon,))
    for fabric in FabricState:
        yield Sample(FABRIC_STATE, float(fabric is snapshot.reading.fabric.state), (fabric,))
    yield Sample(UNREACHABLE, len(snapshot.unreachable))
    obstacle = node_obstacle(snapshot)
    if obstacle is not None:
        yield Sample(NODE_PROBLEMS, 1, (obstacle.explanation.reason,))
