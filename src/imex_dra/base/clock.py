"""The clock, as a constructor argument: `monotonic` to measure, `now` for timestamps in API objects."""

import asyncio
from datetime import UTC, datetime


class Clock:
    """Tests override it."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        # The event loop's time, not time.monotonic(): delays and measurements must agree, also in virtual time.
        return asyncio.get_running_loop().time()


def rfc3339(time: datetime) -> str:
    """`metav1.Time`: whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(time: datetime) -> str:
    """`metav1.MicroTime`: the API server requires exactly six fractional digits."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
