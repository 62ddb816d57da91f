"""How many nodes share an NVLink fabric, by the product name of their GPUs."""

from imex_dra.api.limits import MAX_NODES

_RACK_NODES = {
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
    "NVIDIA GH200": 16,
    "NVIDIA VR200": 18,
}
"""NVL72 (also as two racks of 36 GPUs), and NVL32 with two GPUs in each node. The name that NVML reports may be
longer."""

_OTHER_RACK_NODES = 18

SPARE_INDEXES = 6
"""A node that replaces another one needs an index before that of the other one is free."""


def rack_nodes(product: str) -> int:
    return next((nodes for name, nodes in _RACK_NODES.items() if product.startswith(name)), _OTHER_RACK_NODES)


def index_count(product: str, *, reporting: int, listed: int = 0) -> int:
    """Of a partition that is created now. A machine of an unknown type may have more nodes, which report
    already, or which the node lists of its hosts contain.
    """
    return min(max(rack_nodes(product) + SPARE_INDEXES, reporting + SPARE_INDEXES, listed), MAX_NODES)
