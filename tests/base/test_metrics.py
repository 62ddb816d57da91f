"""The text that Prometheus reads."""

from imex_dra.base.metrics import MAX_SERIES, OTHER, Kind, Metric, Metrics, Sample

ERRORS = Metric("test_errors_total", Kind.COUNTER, "Errors.", ("reason",))
DEPTH = Metric("test_queue_keys", Kind.GAUGE, "Keys\nthat wait.")
SECONDS = Metric("test_call_seconds", Kind.HISTOGRAM, "Calls.", ("result",), (0.1, 1.0))


def test_counters_are_summed_by_their_labels() -> None:
    metrics = Metrics()
    metrics.count(ERRORS, "Gone")
    metrics.count(ERRORS, "Gone", by=2)
    metrics.count(ERRORS, "Conflict")
    assert metrics.text() == (
        "# HELP test_errors_total Errors.\n# TYPE test_errors_total counter\n"
        'test_errors_total{reason="Gone"} 3\ntest_errors_total{reason="Conflict"} 1\n'
    )


def test_a_histogram_counts_each_value_in_its_bucket_and_all_larger_ones() -> None:
    metrics = Metrics()
    for value in (0.05, 0.1, 0.5, 7):
        metrics.observe(SECONDS, value, "ok")
    assert metrics.text().splitlines()[2:] == [
        'test_call_seconds_bucket{result="ok",le="0.1"} 2',
        'test_call_seconds_bucket{result="ok",le="1"} 3',
        'test_call_seconds_bucket{result="ok",le="+Inf"} 4',
        'test_call_seconds_sum{result="ok"} 7.65',
        'test_call_seconds_count{result="ok"} 4',
    ]


def test_values_and_help_texts_are_escaped_and_constant_labels_come_first() -> None:
    metrics = Metrics(node='a"b')
    metrics.set(DEPTH, 1.5)
    metrics.count(ERRORS, "back\\slash\nline")
    assert metrics.text() == (
        "# HELP test_errors_total Errors.\n# TYPE test_errors_total counter\n"
        'test_errors_total{node="a\\"b",reason="back\\\\slash\\nline"} 1\n'
        "# HELP test_queue_keys Keys\\nthat wait.\n# TYPE test_queue_keys gauge\n"
        'test_queue_keys{node="a\\"b"} 1.5\n'
    )


def test_a_source_is_asked_at_each_scrape_and_no_longer_after_its_end() -> None:
    metrics, depth = Metrics(), [3]
    with metrics.source(lambda: [Sample(DEPTH, depth[0])]):
        assert "test_queue_keys 3\n" in metrics.text()
        depth[0] = 4
        assert "test_queue_keys 4\n" in metrics.text()
    assert metrics.text() == ""


def test_the_number_of_series_is_bounded() -> None:
    metrics = Metrics()
    for number in range(3 * MAX_SERIES):
        metrics.count(ERRORS, f"reason {number}")
    metrics.count(ERRORS, "reason 0")
    counts = {sample.labels: sample.value for sample in metrics.samples()}
    assert len(counts) == MAX_SERIES + 1
    assert counts[OTHER,] == 2 * MAX_SERIES
    assert counts["reason 0",] == 2
