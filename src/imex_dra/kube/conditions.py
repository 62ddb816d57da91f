"""Conditions of API objects: lastTransitionTime changes only together with the status."""

from collections.abc import Iterable
from datetime import datetime

from imex_dra.api.meta import Condition
from imex_dra.base.clock import rfc3339

_MAX_MESSAGE = 32768
"""Characters. The CRD's limit: the API server rejects the whole status if a message is longer."""


def with_condition(
    conditions: tuple[Condition, ...],
    type_: str,
    *,
    status: bool | None,
    reason: str,
    message: str,
    now: datetime,
    generation: int = 0,
) -> tuple[Condition, ...]:
    """The conditions with this one added or replaced. A status of None is Unknown."""
    old = find_condition(conditions, type_)
    value = "Unknown" if status is None else str(status)
    since = old.last_transition_time if old and old.status == value else rfc3339(now)
    new = Condition(
        type=type_,
        status=value,
        reason=reason,
        message=message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…",
        last_transition_time=since,
        observed_generation=generation,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition is old else condition for condition in conditions)


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)
