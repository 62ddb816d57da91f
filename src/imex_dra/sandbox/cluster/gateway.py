"""What lies between the nodes and the API server, so that somebody can disturb the line (`faults.gateway`).

A gateway gives each node an address of its own for the API server. It is asked before any node's program starts,
so whatever a node ever sends goes through it: its kubelet's requests, its driver's, and its pods'. Its certificate
must be one of the cluster's authority (`control_plane.authority` signs them for any address).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.control import Request
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.process import Process
from imex_dra.sandbox.racks import SimulatedNode


class Gateway(Protocol):
    def start(
        self, control_plane: ControlPlane, nodes: Sequence[SimulatedNode], places: Places
    ) -> Mapping[str, str]:
        """The API server's URL for each node, by its name. Called once, from the main thread."""

    async def answer(self, request: Request) -> Any:
        """A request `gateway` that came through control.sock."""

    @property
    def process(self) -> Process:
        """Without it no node reaches the API server."""

    def stop(self) -> None: ...
