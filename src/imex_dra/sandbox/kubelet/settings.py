"""What a program that runs many kubelets is told: apart from it, because who writes it runs none."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.standins import Rule


class Member(Struct, frozen=True):
    facts: NodeFacts
    root: Path
    token: str
    server: str = ""
    """The API server's address for this node, if it has one of its own."""


class Serving(Struct, frozen=True):
    """The certificate of the kubelets' own API, one for all of them."""

    certificate: Path
    key: Path


class Settings(Struct, frozen=True):
    server: str
    authority: Path
    nodes: list[Member]
    serving: Serving | None = None
    """Without it there is no `kubectl logs` and `exec`."""
    containers: Literal["hollow", "processes"] = "processes"
    rules: tuple[Rule, ...] = ()
    """Stand-ins for images and commands."""
    control: Path | None = None
