"""Exponential back-off with jitter."""

from hypothesis import given
from hypothesis import strategies as st

from imex_dra.kube.backoff import Backoff, jittered


def test_the_delay_doubles_up_to_the_limit() -> None:
    backoff = Backoff(1.0, 8.0, jitter=lambda: 1.0)
    assert [backoff.delay(failures) for failures in (0, 1, 2, 3, 4, 5, 10_000)] == [1, 1, 2, 4, 8, 8, 8]


@given(failures=st.integers(1, 100), jitter=st.floats(0, 1, exclude_max=True))
def test_half_of_every_delay_is_random(failures: int, jitter: float) -> None:
    full = Backoff(1.0, 60.0, jitter=lambda: 1.0).delay(failures)
    delay = Backoff(1.0, 60.0, jitter=lambda: jitter).delay(failures)
    assert delay == full * (1 + jitter) / 2


def test_many_clients_do_not_retry_at_the_same_moment() -> None:
    delays = [Backoff(1.0, 60.0).delay(5) for _ in range(100)]
    assert len(set(delays)) == 100
    assert max(delays) - min(delays) > 4


def test_a_period_varies_by_a_quarter_around_its_mean() -> None:
    periods = [jittered(60.0) for _ in range(1000)]
    assert 45 <= min(periods) < 50
    assert 70 < max(periods) < 75
