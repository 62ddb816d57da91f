"""What the crew is told: apart from it, because who writes it runs none of its programs."""

from pathlib import Path

from msgspec import Struct


class Post(Struct, frozen=True):
    """Where one member of the crew works."""

    node: str
    address: str
    root: Path
    kubeconfig: Path


class Settings(Struct, frozen=True):
    posts: list[Post]
    fabric: Path
    logs: Path
    control: Path
    apart: bool = False
    """Every program in a process of its own."""
