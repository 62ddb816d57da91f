"""Machines with NVLink, as data: how many nodes and GPUs share a fabric.

What a simulated rack is built from. Driver versions are examples of their time; nothing depends on them.
"""

from msgspec import Struct

DEFAULT_CLIQUE = 32766
"""The clique of a rack that nobody cut into partitions; those that somebody makes count from 1."""

SPARES = 6
"""Slots beyond a partition's nodes: a node that is replaced needs another one before the old one is free."""


class Profile(Struct, frozen=True):
    name: str
    product: str
    """A GPU's name, as NVML gives it."""
    nodes: int
    gpus: int
    """In each node."""
    driver_version: str
    multi_node: bool = True
    """Whether NVLink leaves the node."""
    chassis: int = 1
    """Racks in the sense of furniture that are cabled to one fabric."""

    @property
    def slots(self) -> int:
        """Of the IMEX node map of the whole machine; none where there is no domain to be in."""
        return self.nodes + SPARES if self.multi_node else 0


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("gb200-nvl72", "NVIDIA GB200", nodes=18, gpus=4, driver_version="580.95.05"),
        Profile("gb300-nvl72", "NVIDIA GB300", nodes=18, gpus=4, driver_version="580.95.05"),
        Profile("gb200-nvl36x2", "NVIDIA GB200", nodes=18, gpus=4, driver_version="580.95.05", chassis=2),
        Profile("gh200-nvl32", "NVIDIA GH200 144G HBM3e", nodes=16, gpus=2, driver_version="570.158.01"),
        Profile("vr-nvl72", "NVIDIA VR200", nodes=18, gpus=4, driver_version="615.71"),
        Profile(
            "hgx-h100", "NVIDIA H100 80GB HBM3", nodes=4, gpus=8, driver_version="570.158.01", multi_node=False
        ),
    )
}
