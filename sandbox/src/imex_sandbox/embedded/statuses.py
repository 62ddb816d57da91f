"""Errors of the API, as `Status` objects with the codes and reasons of a real API server."""

from typing import Any, NamedTuple

from imex_sandbox.embedded.kinds import Kind

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
    413: "RequestEntityTooLarge",
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


class Undecodable(ApiError):
    """A body that is not of its type: a bad request, or an invalid patch (422)."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def not_found(plural: str, name: str) -> ApiError:
    return ApiError(404, f'{plural} "{name}" not found', name=name, kind=plural)


def already_exists(plural: str, name: str) -> ApiError:
    return ApiError(409, f'{plural} "{name}" already exists', reason="AlreadyExists", name=name, kind=plural)


def conflict(plural: str, name: str, cause: str) -> ApiError:
    return ApiError(409, f'Operation cannot be fulfilled on {plural} "{name}": {cause}', name=name, kind=plural)


class Cause(NamedTuple):
    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


_CAUSES = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Not found": "FieldValueNotFound",
    "Duplicate value": "FieldValueDuplicate",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
}


def invalid(kind: Kind, name: str, *given: str | Cause) -> ApiError:
    """A cause as text is like `spec.containers[0].image: Required value`."""
    causes = [_cause(one) if isinstance(one, str) else one for one in given]
    text = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details = [{"reason": one.reason, "message": one.message, "field": one.field} for one in causes]
    group = {"group": kind.group} if kind.group else {}
    qualified = ".".join(filter(None, (kind.kind, kind.group)))
    message = f'{qualified} "{name}" is invalid: {text}'
    return ApiError(422, message, name=name, **group, kind=kind.kind, causes=details)


def _cause(text: str) -> Cause:
    field, _, message = text.partition(": ")
    return Cause(field, _CAUSES[message.partition(":")[0]], message)


def unprocessable() -> ApiError:
    """An operation of a JSON Patch failed. A real API server does not say which, or why."""
    return ApiError(422, "the server rejected our request due to an error in our request")


def expired(message: str) -> ApiError:
    return ApiError(410, message)


def no_controller(kind: Kind) -> ApiError:
    what = f"{kind.kind}s are not supported by the embedded control plane"
    return ApiError(501, f"{what}: use a Job, a StatefulSet or a Pod, or --control-plane kubernetes")


def not_supported(what: str) -> ApiError:
    return ApiError(501, f"{what} is not supported by the embedded API")
