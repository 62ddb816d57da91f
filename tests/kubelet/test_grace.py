"""How long containers have to end: the pod's word, a probe's before it, a deletion's before both."""

import pytest

from imex_dra.sandbox.kubelet.grace import SHORTEST_GRACE, grace
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta, PodSpec


@pytest.mark.parametrize(
    ("deletion", "probe", "seconds"),
    [
        (None, None, 30),
        (None, 5, 5),
        (None, 0, SHORTEST_GRACE),
        (7, None, 7),
        (7, 5, 7),
        (0, None, SHORTEST_GRACE),
    ],
)
def test_whose_word_counts(deletion: int | None, probe: int | None, seconds: float) -> None:
    stamp = "" if deletion is None else "2026-01-01T12:00:00Z"
    meta = PodMeta(name="p", deletion_timestamp=stamp, deletion_grace_period_seconds=deletion)
    assert grace(Pod(meta, PodSpec(termination_grace_period_seconds=30)), probe) == seconds
