"""How many nodes a new partition is made for."""

import pytest

from imex_dra.api.limits import MAX_NODES
from imex_dra.hardware.racks import index_count


@pytest.mark.parametrize(
    ("product", "reporting", "listed", "expected"),
    [
        ("NVIDIA GB200", 1, 0, 24),
        ("NVIDIA GH200 480GB", 1, 0, 22),
        ("NVIDIA X9000", 72, 0, 78),
        ("NVIDIA GB200", 1, 18, 24),
        ("NVIDIA GB200", 1, 40, 40),
        ("NVIDIA GB200", 1, 1 << 40, MAX_NODES),
    ],
    ids=["rack", "another rack", "unknown machine", "list of the hosts", "long list", "absurd list"],
)
def test_the_machine_the_reports_and_the_node_lists_of_the_hosts_count(
    product: str, reporting: int, listed: int, expected: int
) -> None:
    assert index_count(product, reporting=reporting, listed=listed) == expected
