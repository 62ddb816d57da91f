"""Sentences of conditions, taken apart: what happened, and what to do next."""


def cause_and_step(message: str, step: str) -> tuple[str, str]:
    """Of a message that an Explanation made. `step` is used if it names none."""
    cause, separator, own = message.rpartition("; ")
    return (cause, own) if separator else (message, step)
