"""Time, injected: what must not jump (`monotonic`) apart from what people and the API server read (`now`)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """Monotonic time is the event loop's, so that sleeping and measuring agree, in virtual time too."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class LoopClock:
    """Both kinds of time follow the event loop: for tests in virtual time."""

    EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def rfc3339(moment: datetime) -> str:
    """`metav1.Time`: whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """`metav1.MicroTime`: the API server insists on six fraction digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
