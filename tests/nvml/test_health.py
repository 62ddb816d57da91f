import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.hardware.health import Finding, Severity, diagnosis
from tests.nvml.stub import HEALTHY

masks = st.integers(0, 2**32 - 1)
summaries = st.integers(0, 5)


@pytest.mark.parametrize("mask", [0, HEALTHY])
@pytest.mark.parametrize("summary", [0, 1])
def test_no_news_is_good_news(mask: int, summary: int) -> None:
    assert diagnosis(mask, summary) == Finding(Severity.FINE, "")


def test_several_findings_are_all_said_and_the_worst_counts() -> None:
    severity, words = diagnosis(1 | 1 << 2 | 1 << 4, 2)
    assert severity is Severity.BREAKING
    assert words.split(" and ") == [
        "its NVLink bandwidth is degraded",
        "its NVLink routes are being recovered",
        "its NVLink routes are unhealthy",
    ]


def test_a_summary_that_the_mask_explains_adds_nothing() -> None:
    assert diagnosis(1 << 2, 2) == (Severity.RECOVERING, "its NVLink routes are being recovered")
    assert diagnosis(1, 3) == (Severity.LIMITED, "its NVLink bandwidth is degraded")


def test_a_summary_that_the_mask_does_not_explain_counts() -> None:
    assert diagnosis(1, 2).severity is Severity.BREAKING
    assert diagnosis(HEALTHY, 3) == (Severity.LIMITED, "the driver calls its fabric limited in capacity")


def test_a_mistake_of_a_later_driver_is_a_mistake() -> None:
    severity, words = diagnosis(11 << 8, 0)
    assert severity is Severity.BREAKING
    assert words.endswith("cause 11")


@given(masks, summaries)
def test_trouble_has_words_and_words_mean_trouble(mask: int, summary: int) -> None:
    severity, words = diagnosis(mask, summary)
    assert bool(words) == (severity is not Severity.FINE)


@given(masks, summaries)
def test_what_a_board_can_not_tell_is_never_held_against_it(mask: int, summary: int) -> None:
    """A field that is 0 says nothing: setting it to 0 makes nothing worse, but for what the summary then says."""
    for shift, width in ((0, 3), (2, 3), (4, 3), (6, 3), (8, 15), (12, 3), (14, 3)):
        assert diagnosis(mask & ~(width << shift), 0).severity <= diagnosis(mask, 0).severity
