"""What a node's proxy does to connections and requests, and the error responses that it injects. Pure."""

from collections.abc import Iterable
from enum import Enum, auto

import msgspec
from msgspec import Struct

_REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
_ALMOST_ONE = 1 - 1e-9
"""Shares such as 0.1 add up to slightly less than 1."""


class Mode(Enum):
    FORWARD = auto()
    """Bytes pass unchanged; TLS ends at the API server."""
    INTERCEPT = auto()
    """The proxy terminates TLS and reads each request."""
    REFUSE = auto()
    """The proxy does not listen."""


class InjectedError(Struct, frozen=True):
    """An HTTP error that a share of the requests gets instead of the API server's response."""

    code: int
    share: float
    retry_after: int | None = None
    """Seconds."""

    @property
    def reason(self) -> str:
        return _REASONS.get(self.code, "InternalError")

    def response(self) -> bytes:
        status = _status(
            self.code, self.reason, f"injected fault: HTTP {self.code} instead of the API server's response"
        )
        body = msgspec.json.encode(status)
        head = [f"HTTP/1.1 {self.code} {self.reason}", "Content-Type: application/json", "Connection: close"]
        head += [f"Content-Length: {len(body)}"]
        head += [f"Retry-After: {self.retry_after}"] if self.retry_after is not None else []
        return "\r\n".join([*head, "", ""]).encode() + body


class Behavior(Struct, frozen=True):
    refuse: bool = False
    """Refuse connections."""
    stall: bool = False
    """Hold back all bytes; nothing is lost."""
    errors: tuple[InjectedError, ...] = ()
    watch_seconds: float | None = None
    """Seconds after which a watch ends with 410 Gone."""

    @property
    def mode(self) -> Mode:
        if self.refuse:
            return Mode.REFUSE
        return Mode.INTERCEPT if self.errors or self.watch_seconds is not None else Mode.FORWARD

    def keeps_connections(self, previous: "Behavior") -> bool:
        """Whether connections that were made under the previous behavior may stay. A stall alone ends none."""
        return self._connection_handling == previous._connection_handling

    @property
    def _connection_handling(self) -> tuple[object, ...]:
        return self.mode, self.errors, self.watch_seconds


class ErrorSchedule:
    """Which request gets which error. Errors are evenly spaced, not random, so that a script is repeatable."""

    def __init__(self, errors: Iterable[InjectedError]) -> None:
        self._due = dict.fromkeys(errors, 0.0)

    def next(self) -> InjectedError | None:
        """The error for the next request, or None if the API server answers it."""
        for error in self._due:
            self._due[error] += error.share
        chosen = next((error for error, due in self._due.items() if due >= _ALMOST_ONE), None)
        if chosen is not None:
            self._due[chosen] -= 1
        return chosen


def _status(code: int, reason: str, message: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


GONE = msgspec.json.encode(
    {"type": "ERROR", "object": _status(410, "Expired", "injected fault: too old resource version")}
)
"""The event with which the API server ends a watch whose resource version is gone."""
