"""Errors of the API, as `Status` objects with the codes and reasons of a real API server."""

from typing import Any

Json = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    def __init__(self, code: int, message: str, *, reason: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS[code],
            "code": code,
            **({"details": details} if details else {}),
        }


def not_found(plural: str, name: str) -> ApiError:
    return ApiError(404, f'{plural} "{name}" not found', name=name, kind=plural)


def already_exists(plural: str, name: str) -> ApiError:
    return ApiError(409, f'{plural} "{name}" already exists', reason="AlreadyExists", name=name, kind=plural)


def conflict(plural: str, name: str, cause: str) -> ApiError:
    return ApiError(409, f'Operation cannot be fulfilled on {plural} "{name}": {cause}', name=name, kind=plural)


def invalid(kind: str, name: str, cause: str) -> ApiError:
    return ApiError(422, f'{kind} "{name}" is invalid: {cause}', name=name, kind=kind)


def unprocessable() -> ApiError:
    """An operation of a JSON Patch failed. A real API server does not say which, or why."""
    return ApiError(422, "the server rejected our request due to an error in our request")


def expired(message: str) -> ApiError:
    return ApiError(410, message)


def not_supported(what: str) -> ApiError:
    return ApiError(501, f"{what} is not supported by the embedded API")
