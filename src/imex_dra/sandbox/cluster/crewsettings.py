"""What the crew is told: apart from it, because who writes it runs none of its programs."""

from pathlib import Path

from msgspec import Struct


class CrewNode(Struct, frozen=True):
    """What the driver's programs must know of their node."""

    name: str
    address: str
    root: Path
    kubeconfig: Path


class CrewSettings(Struct, frozen=True):
    nodes: list[CrewNode]
    fabric: Path
    logs: Path
    control: Path
    apart: bool = False
    """Every program in a process of its own."""
