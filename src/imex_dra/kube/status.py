"""The API server's `Status` answers, turned into our errors."""

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
    NotFound,
    TooManyRequests,
    Unavailable,
)


class Status(Struct):
    message: str = ""
    reason: str = ""
    code: int = 0


def error_from(request: httpx2.Request, code: int, headers: Mapping[str, str], body: bytes) -> ImexError:
    status = _parse(body)
    message = status.message or body[:200].decode(errors="replace").strip() or f"HTTP status {code}"
    return classify(code, status.reason, f"{request.method} {request.url.path}: {message}", _seconds(headers))


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
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return Status()


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
