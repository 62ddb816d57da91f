"""The lines of a cluster, as the cluster sees them: every node's way to the API server goes through one."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from imex_dra.base.errors import Unavailable
from imex_dra.base.files import write_atomically
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.control import Request, ask, forward
from imex_dra.sandbox.faults import lines
from imex_dra.sandbox.faults.interception import HOST
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.process import Process
from imex_dra.sandbox.racks import SimulatedNode

_READY_WITHIN = 60.0


class LineGateway:
    def start(
        self, control_plane: ControlPlane, nodes: Sequence[SimulatedNode], places: Places
    ) -> Mapping[str, str]:
        self._socket = places.run / "lines.sock"
        settings = places.run / "lines.json"
        write_atomically(settings, msgspec.json.encode(self._settings(control_plane, nodes)))
        self.process = Process("lines", [sys.executable, "-m", lines.__name__, settings], log=places.log("lines"))
        self.process.start()
        self.process.until(lambda: bool(self._addresses()), within=_READY_WITHIN)
        return self._addresses()

    async def answer(self, request: Request) -> Any:
        return await forward(self._socket, msgspec.structs.replace(request, do=lines.BEHAVE))

    def stop(self) -> None:
        self.process.stop(within=0)

    def _settings(self, control_plane: ControlPlane, nodes: Sequence[SimulatedNode]) -> lines.Settings:
        own = control_plane.authority.server("line", [f"IP:{HOST}"])
        target = urlsplit(control_plane.url)
        return lines.Settings(
            host=target.hostname or HOST,
            port=target.port or 443,
            authority=str(control_plane.authority.certificate),
            certificate=str(own.certificate),
            key=str(own.key),
            socket=str(self._socket),
            nodes=tuple(node.name for node in nodes),
        )

    def _addresses(self) -> dict[str, str]:
        """By node; nothing while nobody answers."""
        with suppress(Unavailable):
            found: dict[str, str] = ask(self._socket, Request(lines.ADDRESSES))
            return found
        return {}
