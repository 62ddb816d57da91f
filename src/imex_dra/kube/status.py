"""The API server's `Status` objects, and the errors they become."""

from collections.abc import Mapping

import httpx2
import msgspec
from msgspec import Struct

from imex_dra.base.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    ImexError,
    Invalid,
    NamespaceTerminating,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from imex_dra.kube.decoding import decode


class StatusCause(Struct):
    reason: str = ""


class StatusDetails(Struct):
    causes: tuple[StatusCause, ...] = ()


class Status(Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    @property
    def is_of_terminating_namespace(self) -> bool:
        causes = self.details.causes if self.details else ()
        return any(cause.reason == "NamespaceTerminating" for cause in causes)


_statuses = msgspec.json.Decoder(Status)


def error_from(request: httpx2.Request, code: int, headers: Mapping[str, str], body: bytes) -> ImexError:
    status = _parse(body)
    cause = status.message or body[:200].decode(errors="replace").strip() or f"HTTP status {code}"
    message = f"{request.method} {request.url.path}: {cause}"
    if code == 403 and status.is_of_terminating_namespace:
        return NamespaceTerminating(message)
    return classify(code, status.reason, message, _seconds(headers))


def classify(code: int, reason: str, message: str, retry_after: float = 1.0) -> ImexError:
    match code:
        case 409 if reason == "AlreadyExists":
            return AlreadyExists(message)
        case 409:
            return Conflict(message)
        case 410:
            return Gone(message)
        case 429:
            return TooManyRequests(message, retry_after)
        case 404:
            return NotFound(message)
        case 401 | 403:
            return Forbidden(message)
        case code if code >= 500:
            return Unavailable(message)
    return Invalid(message)


def _parse(body: bytes) -> Status:
    try:
        return decode(_statuses, body)
    except ValueError:
        return Status()


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
