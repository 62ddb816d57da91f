"""Conditions: the transition time moves only when the status does."""

from datetime import datetime

from imex_dra.api.meta import Condition
from imex_dra.base.clock import rfc3339

_LONGEST = 32768
"""The API's limit: a longer message would have the whole status refused, and with it all that it says."""


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
    """The conditions with this one set; `None` means Unknown."""
    old = find_condition(conditions, type_)
    word = "Unknown" if status is None else str(status)
    since = old.last_transition_time if old and old.status == word else rfc3339(now)
    new = Condition(
        type=type_,
        status=word,
        reason=reason,
        message=message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…",
        last_transition_time=since,
        observed_generation=generation,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition is old else condition for condition in conditions)


def find_condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)
