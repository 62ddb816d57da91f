from datetime import UTC, datetime

from imex_dra.kube.conditions import find_condition, with_condition

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 1, 13, tzinfo=UTC)


def test_the_transition_time_changes_only_with_the_status() -> None:
    conditions = with_condition((), "Ready", status=False, reason="A", message="a", now=NOON)
    conditions = with_condition(conditions, "Other", status=True, reason="O", message="o", now=NOON)
    conditions = with_condition(conditions, "Ready", status=False, reason="B", message="b", now=LATER)
    ready = find_condition(conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.last_transition_time) == ("False", "B", "2026-01-01T12:00:00Z")
    conditions = with_condition(conditions, "Ready", status=True, reason="C", message="c", now=LATER)
    ready, other = conditions
    assert (ready.status, ready.last_transition_time) == ("True", "2026-01-01T13:00:00Z")
    assert (other.type, other.status) == ("Other", "True")


def test_a_message_that_exceeds_the_limit_of_the_crd_is_truncated() -> None:
    (cut,) = with_condition((), "Ready", status=False, reason="A", message="x" * 40_000, now=NOON)
    (whole,) = with_condition((), "Ready", status=False, reason="A", message="x" * 32_768, now=NOON)
    assert (len(cut.message), cut.message[-2:]) == (32_768, "x…")
    assert whole.message == "x" * 32_768
