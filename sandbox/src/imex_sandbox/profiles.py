"""Machine types with NVLink: how many nodes and GPUs share a fabric. Simulated racks are built from them.

The driver versions are examples; nothing depends on them.
"""

from msgspec import Struct

DEFAULT_CLIQUE = 32766
"""The clique id of a rack that is not divided into partitions. User-defined partitions count from 1."""


class Profile(Struct, frozen=True):
    name: str
    product: str
    """The name of the GPU in NVML."""
    nodes: int
    gpus: int
    """Per node."""
    driver_version: str
    multi_node: bool = True
    """Whether NVLink connects the nodes."""
    chassis: int = 1
    """How many physical racks form one fabric."""


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
